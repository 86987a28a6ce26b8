package control

// Rebirth is a sandbox after a rollback, with how long it took. Its
// descriptors are those of all its sessions that have not ended, in order,
// each with as many as [Session.Descriptors] says.
type Rebirth struct {
	Sandbox   Sandbox          `json:"sandbox"`
	ElapsedNS int64            `json:"elapsed_ns"`
	StageNS   map[string]int64 `json:"stage_ns,omitempty"`
}

// ForkRequest makes sandboxes from a checkpoint.
type ForkRequest struct {
	From CheckpointRef `json:"from"`
	// Sandboxes are the ids of the copies; Hostnames stand beside them, and an
	// empty one is that of the checkpoint.
	Sandboxes []string `json:"sandboxes"`
	Hostnames []string `json:"hostnames"`
	// Resources of all copies; nil: those of the checkpoint.
	Resources *Resources `json:"resources,omitempty"`
}

// MaxForkFiles is how many descriptors come with a ForkReply at most.
const MaxForkFiles = 768

// ForkReply lists the copies of a checkpoint. ElapsedNS is the time of each.
//
// The descriptors of the first sessions come with it: Files says how many there
// are of each copy, all or none of those that its sessions have which have not
// ended, as of a [Rebirth]. The others' are fetched with [VerbAdopt].
type ForkReply struct {
	Checkpoint Checkpoint `json:"checkpoint"`
	Sandboxes  []Sandbox  `json:"sandboxes"`
	ElapsedNS  []int64    `json:"elapsed_ns"`
	Files      []int      `json:"files"`
}
