package control

import (
	"time"

	"github.com/sandtree/sandtree/internal/fault"
)

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
