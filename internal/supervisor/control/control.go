// Package control holds the verbs of a supervisor's socket: what the node
// asks of the process that owns one family's incarnations, and what that
// process reports by itself.
//
// Requests and replies are JSON; descriptors travel beside them in the order
// that each type's comment states. Times are nanoseconds where a field's name
// ends in "_ns". All ids are chosen by the caller, so that a request that was
// interrupted can be asked about by name.
package control

import (
	"time"

	"github.com/sandtree/sandtree/internal/fault"
)

// Verbs of a supervisor.
const (
	VerbCreate           = "create"            // CreateRequest → Sandbox
	VerbRemove           = "remove"            // SandboxRequest → nothing
	VerbHalt             = "halt"              // SandboxRequest: its processes end, its checkpoints stay; nothing
	VerbList             = "list"              // nothing → ListReply
	VerbExec             = "exec"              // ExecRequest → Session, with its descriptors
	VerbSignal           = "signal"            // SignalRequest → nothing
	VerbResize           = "resize"            // ResizeRequest → nothing
	VerbCloseStdin       = "close_stdin"       // SessionRequest → nothing
	VerbAdopt            = "adopt"             // SessionRequest → Session, with duplicates of its descriptors
	VerbForget           = "forget"            // SessionRequest: an ended session's status was recorded; nothing
	VerbCheckpoint       = "checkpoint"        // CheckpointRequest → Checkpoint
	VerbCheckpointRemove = "checkpoint_remove" // CheckpointRef → nothing
	VerbTree             = "tree"              // SandboxRequest → TreeReply
	VerbRollback         = "rollback"          // CheckpointRef → Rebirth, with descriptors of all its sessions
	VerbStandby          = "standby"           // StandbyRequest → nothing
	VerbFork             = "fork"              // ForkRequest → ForkReply, with descriptors of sessions
	VerbDiff             = "diff"              // DiffRequest → DiffReply
	VerbStats            = "stats"             // SandboxRequest → Stats
	VerbKept             = "kept"              // CheckpointRef → Checkpoint, when it is durable or cannot be
	VerbFinished         = "finished"          // CheckpointRef → Checkpoint, when its memory is ready
	VerbSuspend          = "suspend"           // SuspendRequest → Checkpoint
	VerbRecover          = "recover"           // RecoverRequest → RecoverReply
	VerbVerify           = "verify"            // VerifyRequest → VerifyReply
	VerbExport           = "export"            // ExportRequest, with a file that is written → nothing
	VerbImport           = "import"            // ImportRequest, with a file that is read → TreeReply
	VerbFile             = "file"              // FileRequest → FileReply, for open and create with one descriptor
)

// Events that a supervisor sends by itself.
const (
	EventSessionEnded     = "session_ended"     // Session
	EventSandboxEnded     = "sandbox_ended"     // SandboxEnded
	EventCheckpointFailed = "checkpoint_failed" // CheckpointFailed
	EventCheckpointKept   = "checkpoint_kept"   // Checkpoint, whose durability has changed
)

// Resources bound one sandbox. Zero means no bound of its own.
type Resources struct {
	MemoryBytes int64   `json:"memory_bytes,omitempty"`
	CPUs        float64 `json:"cpus,omitempty"`
	PIDs        int64   `json:"pids,omitempty"`
	DiskBytes   int64   `json:"disk_bytes,omitempty"`
}

// CreateRequest boots a sandbox.
type CreateRequest struct {
	Sandbox   string    `json:"sandbox"`
	Hostname  string    `json:"hostname"`
	Resources Resources `json:"resources"`
	// Setuid allows setuid programs to gain privilege inside: no_new_privs
	// stays off and the filter is installed before capabilities are dropped.
	Setuid bool `json:"setuid,omitempty"`
}

// SandboxRequest names a sandbox.
type SandboxRequest struct {
	Sandbox string `json:"sandbox"`
}

// Sandbox is one sandbox as its supervisor sees it.
type Sandbox struct {
	ID        string    `json:"id"`
	Hostname  string    `json:"hostname"`
	Created   time.Time `json:"created"`
	Resources Resources `json:"resources"`
	// Generation counts incarnations: 0 after create, one more after each
	// rollback. A fork starts at 0 again.
	Generation uint64 `json:"generation"`
	// At is the checkpoint that the live state descends from; empty before
	// the first one.
	At    string `json:"at,omitempty"`
	Alive bool   `json:"alive"`
	// Suspended is the checkpoint at which it was suspended. It has no body
	// then; its sessions have not ended.
	Suspended string    `json:"suspended,omitempty"`
	Sessions  []Session `json:"sessions,omitempty"`
}

// ListReply is everything that a new node must know.
type ListReply struct {
	Sandboxes []Sandbox `json:"sandboxes"`
}

// Window is the size of a terminal, in characters.
type Window struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// ExecRequest starts a command as a session.
//
// The reply carries as many descriptors as [Session.Descriptors] says, the
// outer ends of its standard streams: for a terminal the master, and its guard, a
// pipe, which whoever reads from the master locks with flock(2), exclusively, for
// the time of each read, and leaves what he read in until it is in the log; otherwise the write end of stdin and the read ends of
// stdout and stderr. The supervisor keeps duplicates.
type ExecRequest struct {
	Sandbox string   `json:"sandbox"`
	Session string   `json:"session"`
	Argv    []string `json:"argv"` // Argv[0] without a slash is looked up in PATH inside
	Env     []string `json:"env"`
	Dir     string   `json:"dir,omitempty"`  // default: the user's home, or /
	User    string   `json:"user,omitempty"` // name or uid[:gid], looked up in the sandbox's /etc/passwd; default root
	TTY     bool     `json:"tty,omitempty"`
	Window  Window   `json:"window,omitzero"`
	// StdinClosed gives the command an empty stdin (pipes only).
	StdinClosed bool `json:"stdin_closed,omitempty"`
}

// Session is a running or ended command.
type Session struct {
	ID      string    `json:"id"`
	Sandbox string    `json:"sandbox"`
	Argv    []string  `json:"argv"`
	TTY     bool      `json:"tty"`
	PID     int       `json:"pid"` // inside
	Started time.Time `json:"started"`
	// Generation of the incarnation that the descriptors belong to.
	Generation uint64 `json:"generation"`
	Ended      bool   `json:"ended"`
	// ExitCode is 128+signal for a command that a signal ended.
	ExitCode int `json:"exit_code"`
	// Reason is empty for an ordinary end, or "rolled back", "oom",
	// "sandbox ended".
	Reason string `json:"reason,omitempty"`
}

// Descriptors is how many descriptors travel with the session.
func (s Session) Descriptors() int {
	if s.TTY {
		return 2
	}
	return 3
}

// SessionRequest names a session.
type SessionRequest struct {
	Sandbox string `json:"sandbox"`
	Session string `json:"session"`
}

// SignalRequest sends a signal to a session's process group.
type SignalRequest struct {
	Sandbox string `json:"sandbox"`
	Session string `json:"session"`
	Signal  int    `json:"signal"`
}

// ResizeRequest sets the size of a session's terminal.
type ResizeRequest struct {
	Sandbox string `json:"sandbox"`
	Session string `json:"session"`
	Window  Window `json:"window"`
}

// SandboxEnded reports that an incarnation is gone though nobody removed it.
type SandboxEnded struct {
	Sandbox string `json:"sandbox"`
	Reason  string `json:"reason"`
}

// CheckpointRequest takes a checkpoint of a live sandbox.
type CheckpointRequest struct {
	Sandbox    string `json:"sandbox"`
	Checkpoint string `json:"checkpoint"`
	Name       string `json:"name,omitempty"`
	// Async returns when the processes run again. The rest follows; if it
	// fails, the checkpoint leaves the tree and [CheckpointFailed] is sent.
	Async bool `json:"async,omitempty"`
	// Keep makes it durable, in the background, if the supervisor has a worker.
	Keep bool `json:"keep,omitempty"`
	// Explain asks for the checkpoint's items.
	Explain bool `json:"explain,omitempty"`
}

// CheckpointFailed reports that a checkpoint which was taken could not be
// finished, and is not there any more. Those that were taken on top of it
// meanwhile have failed too.
type CheckpointFailed struct {
	Sandbox    string `json:"sandbox"`
	Checkpoint string `json:"checkpoint"`
	Reason     string `json:"reason"`
}

// What the memory of a checkpoint is like.
const (
	MemoryPending = "pending" // it is being finished: a rollback to it waits
	MemoryReady   = "ready"   // it is held by processes
	MemoryNone    = "none"    // it is on disk alone, and is read from there when it is needed
)

// Whether a checkpoint outlives its supervisor.
const (
	DurableNo      = ""        // it does not, and is not meant to
	DurablePending = "pending" // it is being written
	DurableYes     = "yes"
	DurableFailed  = "failed" // it could not be written
)

// SuspendRequest takes a checkpoint of a live sandbox whose processes then do
// not go on: it is durable when the reply comes, and the body is gone. A rollback
// to it brings the sandbox back. After an error the sandbox goes on.
//
// Who reads the sessions' pipes must have stopped before: what is in them
// belongs to the checkpoint.
type SuspendRequest struct {
	Sandbox    string `json:"sandbox"`
	Checkpoint string `json:"checkpoint"`
	// Unload leaves nothing of the sandbox in memory, not of its other durable
	// checkpoints either. Else a finished body stands by.
	Unload bool `json:"unload,omitempty"`
}

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

// CheckpointRef names a checkpoint by id, and the sandbox whose tree it is in
// (or, for a rollback, the sandbox that is rolled back).
type CheckpointRef struct {
	Sandbox    string `json:"sandbox"`
	Checkpoint string `json:"checkpoint"`
}

// StandbyRequest asks that bodies of a checkpoint stand ready for rollbacks and
// forks that will come, as many as Count and as the memory allows. 0 takes that
// back.
type StandbyRequest struct {
	CheckpointRef
	Count int `json:"count"`
}

// Checkpoint is a node of a sandbox's tree.
type Checkpoint struct {
	ID      string    `json:"id"`
	Name    string    `json:"name,omitempty"`
	Sandbox string    `json:"sandbox"`
	Parent  string    `json:"parent,omitempty"`
	Created time.Time `json:"created"`
	// FrozenNS is how long the processes stood still.
	FrozenNS int64 `json:"frozen_ns"`
	// DirtyBytes is memory copied; FileBytes what was written to files since the parent, as far as it
	// is still held, and the file system counts it; of an imported checkpoint all of its files.
	DirtyBytes int64 `json:"dirty_bytes"`
	FileBytes  int64 `json:"file_bytes"`
	Processes  int   `json:"processes"`
	Threads    int   `json:"threads"`
	// Memory is where its memory is: MemoryPending, MemoryReady, MemoryNone.
	Memory string `json:"memory,omitempty"`
	// Durable says whether it outlives the supervisor, DurableReason why not, of
	// the kind DurableKind, and DurableBytes what it added to the disk for that.
	Durable       string     `json:"durable,omitempty"`
	DurableReason string     `json:"durable_reason,omitempty"`
	DurableKind   fault.Kind `json:"durable_kind,omitempty"`
	DurableBytes  int64      `json:"durable_bytes,omitempty"`
	// Suspension: it was not asked for, but made for its sandbox to stand still.
	Suspension bool `json:"suspension,omitempty"`
	// StageNS says what its time went to, by stage: from "stop" to "resume" the
	// frozen time, before that what was done ahead, and "zygotes" behind it. Those whose
	// name begins with "capture " are parts of "capture". In the reply to an asynchronous one
	// is what there was until then.
	StageNS map[string]int64 `json:"stage_ns,omitempty"`
	// Items are everything that it holds, in the reply to a request that asked
	// for them alone.
	Items []Item `json:"items,omitempty"`
}

// Item is a part of what a checkpoint holds.
type Item struct {
	// Process has it, by its number inside; 0: it is the whole sandbox's.
	Process int    `json:"process"`
	Command string `json:"command,omitempty"`
	// Kind is what it is, What says more: a descriptor's number and path.
	Kind  string `json:"kind"`
	What  string `json:"what,omitempty"`
	Count int    `json:"count"`
	// Bytes were copied for it. What is shared stands where it is met first.
	Bytes int64 `json:"bytes"`
}

// TreeReply is the checkpoint tree of a sandbox.
type TreeReply struct {
	Sandbox     string       `json:"sandbox"`
	At          string       `json:"at,omitempty"`
	Checkpoints []Checkpoint `json:"checkpoints"` // parents before children
	// Origin is the checkpoint that the sandbox was forked from. It is in
	// another's tree, or in none any more, and the sandbox can be rolled back to it
	// as to its own. Empty: it was not forked, or an earlier supervisor's
	// checkpoint was not durable.
	Origin string `json:"origin,omitempty"`
}

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

// DiffRequest compares the files of two checkpoints of one tree; an empty To
// means the live state.
type DiffRequest struct {
	Sandbox string `json:"sandbox"`
	From    string `json:"from"`
	To      string `json:"to,omitempty"`
}

// Change is one path that differs. Kind is "A" (added), "M" (changed) or
// "D" (deleted).
type Change struct {
	Path string `json:"path"`
	Kind string `json:"kind"`
}

// DiffReply lists changes by path.
type DiffReply struct {
	Changes []Change `json:"changes"`
}

// Stats are a sandbox's figures of one moment.
type Stats struct {
	Sandbox         string `json:"sandbox"`
	CPUNS           int64  `json:"cpu_ns"`
	MemoryBytes     int64  `json:"memory_bytes"`
	MemoryMaxBytes  int64  `json:"memory_max_bytes,omitempty"`
	PIDs            int64  `json:"pids"`
	PIDsMax         int64  `json:"pids_max,omitempty"`
	DiskBytes       int64  `json:"disk_bytes"`
	DiskMaxBytes    int64  `json:"disk_max_bytes,omitempty"`
	OOMKills        int64  `json:"oom_kills"`
	Checkpoints     int    `json:"checkpoints"`
	CheckpointBytes int64  `json:"checkpoint_bytes"`
	// CheckpointMemory is what the checkpoints that are in memory take there, in
	// bytes; FamilyMemory is the same of all of the family, MachineMemory of all
	// families, and FamilyMemoryMax the budget, which is for all of them.
	CheckpointMemory int64 `json:"checkpoint_memory"`
	FamilyMemory     int64 `json:"family_memory"`
	FamilyMemoryMax  int64 `json:"family_memory_max"`
	MachineMemory    int64 `json:"machine_memory"`
}

// File operations, all done inside the sandbox's root, which no path leaves
// (openat2 with RESOLVE_IN_ROOT).
const (
	FileStat     = "stat"     // Path, NoFollow → Entry
	FileList     = "list"     // Path → Entries, by name
	FileOpen     = "open"     // Path → descriptor of a regular file, read only
	FileCreate   = "create"   // Path, Mode, UID, GID → descriptor, write only; truncates
	FileMkdir    = "mkdir"    // Path, Mode, UID, GID
	FileSymlink  = "symlink"  // Path, Target, UID, GID
	FileReadlink = "readlink" // Path → Entry.Target
	FileRename   = "rename"   // Path, a file; Target, the path it gets, in the place of the file there
	FileRemove   = "remove"   // Path, no directory; a link itself
)

// FileRequest is one file operation.
type FileRequest struct {
	Sandbox  string `json:"sandbox"`
	Op       string `json:"op"`
	Path     string `json:"path"`
	NoFollow bool   `json:"no_follow,omitempty"`
	Mode     uint32 `json:"mode,omitempty"` // permission bits, setuid and sticky included
	UID      int    `json:"uid,omitempty"`  // inside
	GID      int    `json:"gid,omitempty"`
	Target   string `json:"target,omitempty"`
}

// Entry describes a file inside.
type Entry struct {
	Name   string    `json:"name"`
	Mode   uint32    `json:"mode"` // st_mode
	UID    int       `json:"uid"`
	GID    int       `json:"gid"`
	Size   int64     `json:"size"`
	MTime  time.Time `json:"mtime"`
	Target string    `json:"target,omitempty"`
}

// FileReply answers a FileRequest.
type FileReply struct {
	Entry   Entry   `json:"entry"`
	Entries []Entry `json:"entries,omitempty"`
}
