package control

// RecoverRequest makes sandboxes known that an earlier supervisor had, without
// bodies, from what is durable of their checkpoints. Durable checkpoints of sandboxes
// that are neither here nor live are removed. One that exists already is left
// as it is.
type RecoverRequest struct {
	Sandboxes []RecoverSandbox `json:"sandboxes"`
}

// RecoverSandbox is what the caller knows of a sandbox.
type RecoverSandbox struct {
	CreateRequest
	Generation  uint64       `json:"generation"`
	At          string       `json:"at"`
	Checkpoints []Checkpoint `json:"checkpoints"` // parents before children
	// Origin is the checkpoint that it was forked from; empty: it was not.
	Origin string `json:"origin,omitempty"`
}

// RecoverReply has the tree of each sandbox, in order: the checkpoints that are durable.
type RecoverReply struct {
	Trees []TreeReply `json:"trees"`
}

// VerifyRequest names durable checkpoints that are to be read and compared; none
// means all of the family.
type VerifyRequest struct {
	Checkpoints []string `json:"checkpoints,omitempty"`
}

// VerifyReply has what is broken; empty if nothing is.
type VerifyReply struct {
	Problems []Problem `json:"problems"`
}

// Problem is something broken in the durable form of a checkpoint.
type Problem struct {
	Checkpoint string `json:"checkpoint,omitempty"`
	What       string `json:"what"`
}

// ExportRequest names durable checkpoints that are written to one file. Parents are those
// that they have among them, by id.
type ExportRequest struct {
	Checkpoints []string          `json:"checkpoints"`
	Parents     map[string]string `json:"parents,omitempty"`
}

// ImportRequest makes a sandbox, without a body, from an exported file. Its
// checkpoints get new ids.
type ImportRequest struct {
	CreateRequest
}
