package client

import (
	"context"
	"fmt"
	"math"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	sandtreev1 "github.com/sandtree/sandtree/api/sandtree/v1"
)

// CheckpointInfo describes a checkpoint.
type CheckpointInfo struct {
	ID      string    `json:"id"`
	Name    string    `json:"name,omitempty"`
	Sandbox string    `json:"sandbox"`
	Parent  string    `json:"parent,omitempty"`
	Created time.Time `json:"created"`
	// FrozenNS is how long the processes stood still.
	FrozenNS int64 `json:"frozen_ns"`
	// DirtyBytes is memory copied, FileBytes what was written to files since the parent, as far as it
	// is still held; of an imported checkpoint all of its files.
	DirtyBytes int64            `json:"dirty_bytes"`
	FileBytes  int64            `json:"file_bytes"`
	Processes  int64            `json:"processes"`
	Threads    int64            `json:"threads"`
	StageNS    map[string]int64 `json:"stage_ns,omitempty"` // what its time went to, the frozen time and before and after it
	// Memory is where its memory is.
	Memory Memory `json:"memory,omitempty"`
	// Durable says whether it outlives the daemon, DurableReason why it could
	// not be made so, and DurableBytes what it added to the disk.
	Durable       Durability `json:"durable,omitempty"`
	DurableReason string     `json:"durable_reason,omitempty"`
	DurableBytes  int64      `json:"durable_bytes,omitempty"`
}

// Memory says where a checkpoint's memory is.
type Memory string

// Where a checkpoint's memory is.
const (
	MemoryPending Memory = "pending" // it is being finished: a rollback to it waits
	MemoryReady   Memory = "ready"
	MemoryNone    Memory = "none" // on disk alone: it is read when it is needed
)

// Durability says whether a checkpoint outlives the daemon and the machine.
type Durability string

// Whether a checkpoint outlives the daemon and the machine.
const (
	DurableNo      Durability = "no" // it is not meant to
	DurablePending Durability = "pending"
	DurableYes     Durability = "yes"
	DurableFailed  Durability = "failed"
)

// Checkpoint is one instant of a sandbox: its files and processes.
type Checkpoint struct {
	CheckpointInfo
	c *Client
}

// CheckpointOptions say how a checkpoint is taken.
type CheckpointOptions struct {
	// Name is optional and unique within the sandbox.
	Name string
	// Async returns when the processes run again; the rest follows. If it fails,
	// the checkpoint is gone.
	Async bool
	// Durable returns when the checkpoint is durable, NotDurable leaves it in memory
	// alone. It becomes durable in the background without either.
	Durable, NotDurable bool
}

// Checkpoint takes a checkpoint. The name is optional and unique within the
// sandbox.
func (s *Sandbox) Checkpoint(ctx context.Context, name string) (*Checkpoint, error) {
	return s.CheckpointWith(ctx, CheckpointOptions{Name: name})
}

// CheckpointWith takes a checkpoint.
func (s *Sandbox) CheckpointWith(ctx context.Context, o CheckpointOptions) (*Checkpoint, error) {
	m, err := s.createCheckpoint(ctx, o, false)
	if err != nil {
		return nil, err
	}
	return s.c.checkpoint(m.GetCheckpoint()), nil
}

func (s *Sandbox) createCheckpoint(ctx context.Context, o CheckpointOptions, explain bool) (*sandtreev1.CreateCheckpointResponse, error) {
	keep := sandtreev1.Keep_KEEP_UNSPECIFIED
	switch {
	case o.Durable && o.NotDurable:
		return nil, &Error{Kind: Invalid, Message: "checkpoint: durable and not durable at once"}
	case o.Durable:
		keep = sandtreev1.Keep_KEEP_WAIT
	case o.NotDurable:
		keep = sandtreev1.Keep_KEEP_NO
	}
	r, err := s.c.checkpoints.Create(ctx, connect.NewRequest(&sandtreev1.CreateCheckpointRequest{
		Sandbox: s.ID, Name: o.Name, Async: o.Async, Keep: keep, Explain: explain,
	}))
	if err != nil {
		return nil, wrap(err)
	}
	return r.Msg, nil
}

// CapturedItem is a part of what a checkpoint holds.
type CapturedItem struct {
	// Process has it, by its number inside; 0: it is the whole sandbox's.
	Process int64  `json:"process"`
	Command string `json:"command,omitempty"`
	// Kind is what it is ("memory", "threads", "pipe", …), What says more: a
	// descriptor's number and path.
	Kind  string `json:"kind"`
	What  string `json:"what,omitempty"`
	Count int64  `json:"count"`
	// Bytes were copied for it. What is shared stands where it is met first.
	Bytes int64 `json:"bytes"`
}

// ExplainedCheckpoint takes a checkpoint, as [Sandbox.CheckpointWith] does, and
// lists everything that it holds.
func (s *Sandbox) ExplainedCheckpoint(ctx context.Context, o CheckpointOptions) (*Checkpoint, []CapturedItem, error) {
	m, err := s.createCheckpoint(ctx, o, true)
	if err != nil {
		return nil, nil, err
	}
	items := make([]CapturedItem, 0, len(m.GetItems()))
	for _, i := range m.GetItems() {
		items = append(items, CapturedItem{
			Process: i.GetProcess(), Command: i.GetCommand(), Kind: i.GetKind(), What: i.GetWhat(), Count: i.GetCount(), Bytes: i.GetBytes(),
		})
	}
	return s.c.checkpoint(m.GetCheckpoint()), items, nil
}

// RemoveCheckpoint deletes a checkpoint, named by id or name.
func (s *Sandbox) RemoveCheckpoint(ctx context.Context, checkpoint string) error {
	_, err := s.c.checkpoints.Remove(ctx, connect.NewRequest(&sandtreev1.RemoveCheckpointRequest{Sandbox: s.ID, Checkpoint: checkpoint}))
	return wrap(err)
}

// Standby asks that n bodies of a checkpoint, named by id or name, stand ready:
// as many rollbacks to it or forks of it then take a few milliseconds. They are
// built in the background, as far as memory allows, and built again when they
// were used. 0 takes the wish back.
//
// Without being asked, a sandbox has one for the checkpoint that it stands at and
// one for that one's parent.
func (s *Sandbox) Standby(ctx context.Context, checkpoint string, n int) error {
	return s.c.standby(ctx, s.ID, checkpoint, n)
}

// Standby is [Sandbox.Standby] of the checkpoint.
func (k *Checkpoint) Standby(ctx context.Context, n int) error { return k.c.standby(ctx, "", k.ID, n) }

// MostStandbys is how many bodies may be asked for of one checkpoint.
const MostStandbys = 64

// CheckStandbys returns an error of kind [Invalid] if so many bodies of a checkpoint
// cannot be asked for.
func CheckStandbys(n int) error {
	if n < 0 || n > MostStandbys {
		return &Error{Kind: Invalid, Message: fmt.Sprintf("%d standbys: not 0 to %d", n, MostStandbys)}
	}
	return nil
}

func (c *Client) standby(ctx context.Context, sandbox, checkpoint string, n int) error {
	if err := CheckStandbys(n); err != nil {
		return err
	}
	_, err := c.checkpoints.Standby(ctx, connect.NewRequest(&sandtreev1.StandbyRequest{Sandbox: sandbox, Checkpoint: checkpoint, Count: uint32(n)})) //nolint:gosec // it was checked
	return wrap(err)
}

// Remove deletes the checkpoint.
func (k *Checkpoint) Remove(ctx context.Context) error {
	_, err := k.c.checkpoints.Remove(ctx, connect.NewRequest(&sandtreev1.RemoveCheckpointRequest{Checkpoint: k.ID}))
	return wrap(err)
}

// Tree is a sandbox's checkpoint tree.
type Tree struct {
	ID          string            `json:"id"` // the sandbox's
	Name        string            `json:"name,omitempty"`
	At          string            `json:"at,omitempty"` // the checkpoint that the live state descends from
	Checkpoints []*CheckpointInfo `json:"checkpoints"`  // parents before children
}

// Tree returns the sandbox's checkpoint tree.
func (s *Sandbox) Tree(ctx context.Context) (Tree, error) {
	all, err := s.c.trees(ctx, s.ID)
	if err != nil {
		return Tree{}, err
	}
	if len(all) != 1 {
		return Tree{}, &Error{Kind: Internal, Message: "the daemon sent no tree of sandbox " + s.ID}
	}
	return all[0], nil
}

// Trees returns the trees of all sandboxes.
func (c *Client) Trees(ctx context.Context) ([]Tree, error) { return c.trees(ctx, "") }

func (c *Client) trees(ctx context.Context, sandbox string) ([]Tree, error) {
	r, err := c.checkpoints.Tree(ctx, connect.NewRequest(&sandtreev1.TreeRequest{Sandbox: sandbox}))
	if err != nil {
		return nil, wrap(err)
	}
	all := make([]Tree, 0, len(r.Msg.GetTrees()))
	for _, m := range r.Msg.GetTrees() {
		t := Tree{ID: m.GetSandbox(), Name: m.GetSandboxName(), At: m.GetAt(), Checkpoints: []*CheckpointInfo{}}
		for _, k := range m.GetCheckpoints() {
			t.Checkpoints = append(t.Checkpoints, &c.checkpoint(k).CheckpointInfo)
		}
		all = append(all, t)
	}
	return all, nil
}

// RollbackResult is a sandbox after a rollback.
type RollbackResult struct {
	SandboxInfo
	Checkpoint string           `json:"checkpoint"`
	ElapsedNS  int64            `json:"elapsed_ns"`
	StageNS    map[string]int64 `json:"stage_ns,omitempty"`
}

// Rollback makes the sandbox what it was at one of its checkpoints, named by
// id or name. Sessions of the checkpoint go on, and whoever is attached to
// them stays; sessions that were started later end.
func (s *Sandbox) Rollback(ctx context.Context, checkpoint string) (RollbackResult, error) {
	r, err := s.c.checkpoints.Rollback(ctx, connect.NewRequest(&sandtreev1.RollbackRequest{Sandbox: s.ID, Checkpoint: checkpoint}))
	if err != nil {
		return RollbackResult{}, wrap(err)
	}
	return RollbackResult{
		SandboxInfo: s.c.sandbox(r.Msg.GetSandbox()).SandboxInfo, Checkpoint: r.Msg.GetCheckpoint(),
		ElapsedNS: r.Msg.GetElapsedNs(), StageNS: r.Msg.GetStageNs(),
	}, nil
}

// ForkResult is what a fork made.
type ForkResult struct {
	// Checkpoint is the one that was forked; a fork of a sandbox took it.
	Checkpoint *Checkpoint
	Sandboxes  []*Sandbox
	// Sessions are those that go on in each copy, beside Sandboxes: what
	// [Sandbox.Sessions] would tell. Each has an id of its own.
	Sessions [][]*Session
	// ElapsedNS is the time of each.
	ElapsedNS []int64
	// Reseeds stand beside Sandboxes if they were reseeded.
	Reseeds []Reseed
}

// Reseed is what became of one copy's /etc/sandtree/reseed.
type Reseed struct {
	Sandbox string `json:"sandbox"`
	// Found is false where the copy has no such file.
	Found bool `json:"found"`
	// Session it ran as.
	Session  string `json:"session,omitempty"`
	ExitCode int    `json:"exit_code"`
	// Reason says why it did not run, or was ended.
	Reason    string `json:"reason,omitempty"`
	Output    string `json:"output,omitempty"` // the end of it
	ElapsedNS int64  `json:"elapsed_ns"`
}

// Failed reports whether the program was there and did not end well.
func (r Reseed) Failed() bool { return r.Found && (r.ExitCode != 0 || r.Reason != "") }

// ForkOptions say how copies are made.
type ForkOptions struct {
	Count int
	Names []string // optional: as many as Count
	// Reseed gives each copy an identity of its own: /etc/machine-id and
	// /etc/hostname are written anew, where they are files, and the copy's
	// /etc/sandtree/reseed is run as root, which is to do the rest (random
	// generators, keys, ids). Copies of a template with Reseed have it in any case.
	Reseed        bool
	ReseedTimeout time.Duration // default: 30 seconds
}

// Fork makes n new sandboxes from the checkpoint. Names are optional.
func (k *Checkpoint) Fork(ctx context.Context, n int, names ...string) (ForkResult, error) {
	return k.c.Fork(ctx, k.ID, n, names...)
}

// Fork takes a checkpoint and makes n new sandboxes from it. Names are
// optional.
func (s *Sandbox) Fork(ctx context.Context, n int, names ...string) (ForkResult, error) {
	return s.c.Fork(ctx, s.ID, n, names...)
}

// Fork makes n new sandboxes from a source: a sandbox (by id or name, its
// live state is checkpointed first), a checkpoint's id, a checkpoint's name
// if only one sandbox has it, or "SANDBOX/CHECKPOINT".
func (c *Client) Fork(ctx context.Context, source string, n int, names ...string) (ForkResult, error) {
	return c.ForkWith(ctx, source, ForkOptions{Count: n, Names: names})
}

// ForkWith is [Client.Fork] with options. A program of a copy that is to reseed it
// and fails is no error: the copies are there, and Reseeds tell.
func (c *Client) ForkWith(ctx context.Context, source string, o ForkOptions) (ForkResult, error) {
	if o.Count < 1 {
		return ForkResult{}, &Error{Kind: Invalid, Message: "fork: the number of copies must be at least 1"}
	}
	req := &sandtreev1.ForkRequest{Source: source, Count: uint32(min(o.Count, math.MaxInt32)), Names: o.Names, Reseed: o.Reseed} //nolint:gosec // the daemon bounds it far lower
	if o.ReseedTimeout != 0 {
		req.ReseedTimeout = durationpb.New(o.ReseedTimeout)
	}
	r, err := c.checkpoints.Fork(ctx, connect.NewRequest(req))
	if err != nil {
		return ForkResult{}, wrap(err)
	}
	f := ForkResult{Checkpoint: c.checkpoint(r.Msg.GetCheckpoint()), ElapsedNS: r.Msg.GetElapsedNs()}
	of := map[string][]*Session{}
	for _, m := range r.Msg.GetSessions() {
		of[m.GetSandbox()] = append(of[m.GetSandbox()], &Session{SessionInfo: fromSession(m), c: c})
	}
	for _, m := range r.Msg.GetSandboxes() {
		f.Sandboxes = append(f.Sandboxes, c.sandbox(m))
		f.Sessions = append(f.Sessions, of[m.GetId()])
	}
	for _, m := range r.Msg.GetReseeds() {
		f.Reseeds = append(f.Reseeds, Reseed{
			Sandbox: m.GetSandbox(), Found: m.GetFound(), Session: m.GetSession(), ExitCode: int(m.GetExitCode()),
			Reason: m.GetReason(), Output: m.GetOutput(), ElapsedNS: m.GetElapsedNs(),
		})
	}
	return f, nil
}

// Change is one path that differs. Kind is "A" (added), "M" (changed) or "D"
// (deleted).
type Change struct {
	Path string `json:"path"`
	Kind string `json:"kind"`
}

// Diff lists the files that differ between two checkpoints of one tree, or
// between one and the live state. Each is a source as in [Client.Fork]; a
// sandbox means its live state. Names of checkpoints are looked up in the
// sandbox that is given, which may be empty.
func (c *Client) Diff(ctx context.Context, from, to, sandbox string) ([]Change, error) {
	r, err := c.checkpoints.Diff(ctx, connect.NewRequest(&sandtreev1.DiffRequest{From: from, To: to, Sandbox: sandbox}))
	if err != nil {
		return nil, wrap(err)
	}
	all := make([]Change, 0, len(r.Msg.GetChanges()))
	for _, m := range r.Msg.GetChanges() {
		all = append(all, Change{Path: m.GetPath(), Kind: changeKinds[m.GetKind()]})
	}
	return all, nil
}

var changeKinds = map[sandtreev1.ChangeKind]string{
	sandtreev1.ChangeKind_CHANGE_KIND_ADDED:    "A",
	sandtreev1.ChangeKind_CHANGE_KIND_MODIFIED: "M",
	sandtreev1.ChangeKind_CHANGE_KIND_DELETED:  "D",
}

func (c *Client) checkpoint(m *sandtreev1.Checkpoint) *Checkpoint {
	return &Checkpoint{c: c, CheckpointInfo: CheckpointInfo{
		ID: m.GetId(), Name: m.GetName(), Sandbox: m.GetSandbox(), Parent: m.GetParent(), Created: m.GetCreated().AsTime(),
		FrozenNS: m.GetFrozenNs(), DirtyBytes: m.GetDirtyBytes(), FileBytes: m.GetFileBytes(),
		Processes: m.GetProcesses(), Threads: m.GetThreads(), StageNS: m.GetStageNs(),
		Memory: memories[m.GetMemory()], Durable: durabilities[m.GetDurable()], DurableReason: m.GetDurableReason(), DurableBytes: m.GetDurableBytes(),
	}}
}
