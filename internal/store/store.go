// Package store keeps what a node must know after a restart: templates,
// sandboxes, sessions and checkpoints.
//
// A [Store] is the truth about which of them exist and what they are called.
// What they do at the moment is known to their supervisors, and what a session
// printed is in its log. Every method is one transaction: after a kill of the
// process at any instant it has happened whole or not at all.
//
// Errors have a kind: fault.NotFound for an id or name that is not there,
// fault.Exists for a name or id that is taken, fault.Conflict for the removal
// of what something else depends on, fault.Exhausted for a full disk.
//
// The suite in storetest holds every implementation to this contract.
package store

import (
	"context"
	"time"

	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// Template is what sandboxes are created from.
type Template struct {
	ID   string
	Name string // unique
	// ImageID and Image are the id and name of the image it was made from.
	ImageID, Image string
	Layers         []string // digests, lowest first
	Start          string   // shell command; empty: none
	// Ready is a shell command that succeeds when Start is ready; empty: that is
	// told by Start itself. ReadyTimeout bounds the waiting.
	Ready        string
	ReadyTimeout time.Duration
	Env          map[string]string
	User, Dir    string
	Resources    control.Resources
	Setuid       bool
	// Reseed gives each sandbox an identity of its own when it is created or
	// forked.
	Reseed  bool
	Created time.Time
}

// State of a sandbox.
type State string

// The states of a sandbox. One that was removed has no record.
const (
	// Creating: asked of the supervisor; a node that finds it after a restart
	// removes it unless the supervisor has it.
	Creating State = "creating"
	Running  State = "running"
	Lost     State = "lost"
	// Paused and Hibernated stand still: they have no body, and come back at
	// At. Of a hibernated one nothing is in memory, and perhaps no supervisor
	// knows it.
	Paused     State = "paused"
	Hibernated State = "hibernated"
	// Removing: a node that finds it after a restart finishes the removal.
	Removing State = "removing"
)

// Sandbox is an identity; its body is its supervisor's.
type Sandbox struct {
	ID         string
	Name       string // unique unless empty
	Template   string // id
	Hostname   string
	Env        map[string]string
	Resources  control.Resources
	State      State
	LostReason string
	// Reason is why it stands still though nobody asked, or when it came back.
	Reason     string
	Created    time.Time
	Generation uint64
	At         string // checkpoint that the live state descends from
	ForkedFrom string // checkpoint
	// StartSession is the id of the start command's session; empty: none.
	StartSession string
	// Golden: not a user's, but what the sandboxes of its template are forked
	// from, at its checkpoint At. It never changes.
	Golden bool
}

// Mark is where the output of one generation begins in a session's log.
type Mark struct {
	Generation uint64 `json:"generation"`
	Checkpoint string `json:"checkpoint,omitempty"`
	Stdout     uint64 `json:"stdout"`
	Stderr     uint64 `json:"stderr"`
}

// Session is a command that was started in a sandbox.
type Session struct {
	ID      string // unique everywhere
	Sandbox string // id
	// Key is what the supervisor calls it: the id it had in the sandbox that
	// this one was forked from, or its own.
	Key        string
	Argv       []string
	TTY        bool
	PID        int
	Started    time.Time
	Deadline   time.Time // of exec's timeout; zero: none
	Generation uint64
	Ended      bool
	EndedAt    time.Time
	ExitCode   int
	Reason     string
	Marks      []Mark // one a generation that it lived in, in order
}

// Checkpoint is a name's owner in a sandbox's tree. The tree itself is its
// supervisor's; Info is what that has said last, from which the tree is made anew.
type Checkpoint struct {
	ID      string
	Sandbox string
	Name    string // unique within the sandbox unless empty
	Created time.Time
	Info    control.Checkpoint
}

// Templates keeps templates. A ref is an id or a name.
type Templates interface {
	AddTemplate(ctx context.Context, t Template) error
	Template(ctx context.Context, ref string) (Template, error)
	// Templates lists them by name.
	Templates(ctx context.Context) ([]Template, error)
	// RemoveTemplate refuses, with Conflict, while a sandbox uses it.
	RemoveTemplate(ctx context.Context, id string) error
}

// Sandboxes keeps sandboxes. A ref is an id or a name.
type Sandboxes interface {
	// AddSandbox refuses a template that is not there, with NotFound.
	AddSandbox(ctx context.Context, s Sandbox) error
	// AddSandboxes is AddSandbox for all of them, or for none, in one transaction.
	AddSandboxes(ctx context.Context, all []Sandbox) error
	Sandbox(ctx context.Context, ref string) (Sandbox, error)
	// Sandboxes lists them, oldest first.
	Sandboxes(ctx context.Context) ([]Sandbox, error)
	// UpdateSandbox replaces the record with the same id; its template and
	// creation stay what they were.
	UpdateSandbox(ctx context.Context, s Sandbox) error
	// UpdateBody is UpdateSandbox, and UpdateSession for sessions of it, in one
	// transaction. A session that is not there is passed over.
	UpdateBody(ctx context.Context, s Sandbox, sessions []Session) error
	// UpdateSandboxes is UpdateSandbox for all of them, and AddSession for sessions
	// that are new, in one transaction: all of it is done, or nothing.
	UpdateSandboxes(ctx context.Context, all []Sandbox, added []Session) error
	// RemoveSandbox removes it with its sessions and checkpoints.
	RemoveSandbox(ctx context.Context, id string) error
}

// Sessions keeps sessions, for as long as their sandbox is kept.
type Sessions interface {
	// AddSession refuses a sandbox that is not there, with NotFound.
	AddSession(ctx context.Context, s Session) error
	Session(ctx context.Context, id string) (Session, error)
	// Sessions lists those of a sandbox, oldest first; with an empty id,
	// those of all.
	Sessions(ctx context.Context, sandbox string) ([]Session, error)
	UpdateSession(ctx context.Context, s Session) error
	RemoveSession(ctx context.Context, id string) error
}

// Checkpoints keeps the names of checkpoints.
type Checkpoints interface {
	// AddCheckpoint refuses a sandbox that is not there, with NotFound.
	AddCheckpoint(ctx context.Context, c Checkpoint) error
	// UpdateCheckpoint replaces the Info of the record with the same id.
	UpdateCheckpoint(ctx context.Context, c Checkpoint) error
	// Checkpoint finds one by id, in any sandbox.
	Checkpoint(ctx context.Context, id string) (Checkpoint, error)
	// CheckpointsNamed lists those of a name: of one sandbox, or with an
	// empty id of all.
	CheckpointsNamed(ctx context.Context, sandbox, name string) ([]Checkpoint, error)
	// Checkpoints lists those of a sandbox, oldest first.
	Checkpoints(ctx context.Context, sandbox string) ([]Checkpoint, error)
	RemoveCheckpoint(ctx context.Context, id string) error
}

// Store is all of it. It is safe for concurrent use.
type Store interface {
	Templates
	Sandboxes
	Sessions
	Checkpoints
	Close() error
}
