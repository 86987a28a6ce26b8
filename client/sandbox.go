package client

import (
	"context"
	"time"

	"connectrpc.com/connect"

	sandtreev1 "github.com/sandtree/sandtree/api/sandtree/v1"
)

// Resources bound one sandbox. Zero means the template's bound, or none.
type Resources struct {
	MemoryBytes int64   `json:"memory_bytes,omitempty"`
	CPUs        float64 `json:"cpus,omitempty"`
	PIDs        int64   `json:"pids,omitempty"`
	DiskBytes   int64   `json:"disk_bytes,omitempty"`
}

// State is a sandbox's state.
type State string

// The states of a sandbox. A removed one does not exist any more.
const (
	Running State = "running"
	// Paused and Hibernated sandboxes stand still; whoever uses one makes it run
	// on. Nothing of a hibernated one is in memory.
	Paused     State = "paused"
	Hibernated State = "hibernated"
	// LostState: the supervisor died, and the sandbox's processes with it.
	// All that is left to do is to remove it.
	LostState State = "lost"
	// Removed is what Wait reports of a sandbox that was removed meanwhile.
	Removed State = "removed"
)

// SandboxInfo describes a sandbox as it was when the call returned.
type SandboxInfo struct {
	ID           string            `json:"id"`
	Name         string            `json:"name,omitempty"`
	Template     string            `json:"template"`
	TemplateID   string            `json:"template_id"`
	Hostname     string            `json:"hostname"`
	State        State             `json:"state"`
	LostReason   string            `json:"lost_reason,omitempty"`
	StateReason  string            `json:"state_reason,omitempty"` // why it stands still unasked, or how it came back
	Created      time.Time         `json:"created"`
	Resources    Resources         `json:"resources"`
	Env          map[string]string `json:"env,omitempty"`
	Generation   uint64            `json:"generation"`              // rollbacks so far
	At           string            `json:"at,omitempty"`            // the checkpoint that the live state descends from
	ForkedFrom   string            `json:"forked_from,omitempty"`   // the checkpoint it was forked from
	StartSession string            `json:"start_session,omitempty"` // the template's start command
}

// Sandbox is one environment. Its embedded description is not kept up to
// date: ask [Client.Sandbox] again.
type Sandbox struct {
	SandboxInfo
	c *Client
}

// SandboxConfig says what a new sandbox is to be.
type SandboxConfig struct {
	Template  string // a name or id; empty: "debian"
	Name      string // optional, unique among sandboxes
	Hostname  string // default: the name, or the id
	Env       map[string]string
	Resources Resources
}

// CreateSandbox boots a sandbox from a template.
func (c *Client) CreateSandbox(ctx context.Context, cfg SandboxConfig) (*Sandbox, error) {
	r, err := c.sandboxes.Create(ctx, connect.NewRequest(&sandtreev1.CreateSandboxRequest{
		Template: cfg.Template, Name: cfg.Name, Hostname: cfg.Hostname, Env: cfg.Env, Resources: toResources(cfg.Resources),
	}))
	if err != nil {
		return nil, wrap(err)
	}
	return c.sandbox(r.Msg.GetSandbox()), nil
}

// Sandbox finds a sandbox by id or name.
func (c *Client) Sandbox(ctx context.Context, ref string) (*Sandbox, error) {
	r, err := c.sandboxes.Get(ctx, connect.NewRequest(&sandtreev1.GetSandboxRequest{Sandbox: ref}))
	if err != nil {
		return nil, wrap(err)
	}
	return c.sandbox(r.Msg.GetSandbox()), nil
}

// Sandboxes lists all sandboxes, oldest first.
func (c *Client) Sandboxes(ctx context.Context) ([]*Sandbox, error) {
	r, err := c.sandboxes.List(ctx, connect.NewRequest(&sandtreev1.ListSandboxesRequest{}))
	if err != nil {
		return nil, wrap(err)
	}
	all := make([]*Sandbox, 0, len(r.Msg.GetSandboxes()))
	for _, s := range r.Msg.GetSandboxes() {
		all = append(all, c.sandbox(s))
	}
	return all, nil
}

// SandboxHandle returns a handle that is described by nothing but an id or
// name, without asking the daemon: the methods of a handle need no more.
func (c *Client) SandboxHandle(ref string) *Sandbox {
	return &Sandbox{SandboxInfo: SandboxInfo{ID: ref}, c: c}
}

// Remove ends the sandbox and deletes its checkpoints and logs. Without force
// it refuses, with [Conflict], while sessions run in it.
func (s *Sandbox) Remove(ctx context.Context, force bool) error {
	_, err := s.c.sandboxes.Remove(ctx, connect.NewRequest(&sandtreev1.RemoveSandboxRequest{Sandbox: s.ID, Force: force}))
	return wrap(err)
}

// WaitResult is why a wait ended.
type WaitResult struct {
	ID    string `json:"id"`
	State State  `json:"state"`
	// Session is the one that was waited for or ended last, if there is one.
	Session *SessionInfo `json:"session,omitempty"`
}

// Wait returns when no session runs in the sandbox any more, or it is removed
// or lost. With a session's id it waits for that session alone.
func (s *Sandbox) Wait(ctx context.Context, session string) (WaitResult, error) {
	r, err := s.c.sandboxes.Wait(ctx, connect.NewRequest(&sandtreev1.WaitRequest{Sandbox: s.ID, Session: session}))
	if err != nil {
		return WaitResult{}, wrap(err)
	}
	w := WaitResult{ID: r.Msg.GetId(), State: fromState(r.Msg.GetState())}
	if m := r.Msg.GetSession(); m != nil {
		i := fromSession(m)
		w.Session = &i
	}
	return w, nil
}

// Stats are a sandbox's figures of one moment. A zero maximum is no bound.
type Stats struct {
	ID              string `json:"id"`
	State           State  `json:"state"`
	CPUNS           int64  `json:"cpu_ns"`
	MemoryBytes     int64  `json:"memory_bytes"`
	MemoryMaxBytes  int64  `json:"memory_max_bytes"`
	PIDs            int64  `json:"pids"`
	PIDsMax         int64  `json:"pids_max"`
	DiskBytes       int64  `json:"disk_bytes"`
	DiskMaxBytes    int64  `json:"disk_max_bytes"`
	OOMKills        int64  `json:"oom_kills"`
	Checkpoints     int64  `json:"checkpoints"`
	CheckpointBytes int64  `json:"checkpoint_bytes"`
	// CheckpointMemoryBytes is what the sandbox's checkpoints that are in memory
	// take there, about; TemplateCheckpointMemoryBytes is the same of all of its
	// template, AllCheckpointMemoryBytes of all templates, and
	// TemplateCheckpointMemoryMaxBytes the budget, which is for all of them.
	CheckpointMemoryBytes            int64 `json:"checkpoint_memory_bytes"`
	TemplateCheckpointMemoryBytes    int64 `json:"template_checkpoint_memory_bytes"`
	TemplateCheckpointMemoryMaxBytes int64 `json:"template_checkpoint_memory_max_bytes"`
	AllCheckpointMemoryBytes         int64 `json:"all_checkpoint_memory_bytes"`
}

// Stats returns the sandbox's figures of this moment. One that stands still goes
// on standing still.
func (s *Sandbox) Stats(ctx context.Context) (Stats, error) {
	r, err := s.c.sandboxes.Stats(ctx, connect.NewRequest(&sandtreev1.StatsRequest{Sandbox: s.ID}))
	if err != nil {
		return Stats{}, wrap(err)
	}
	m := r.Msg
	return Stats{
		ID: m.GetId(), State: fromState(m.GetState()), CPUNS: m.GetCpuNs(), MemoryBytes: m.GetMemoryBytes(), MemoryMaxBytes: m.GetMemoryMaxBytes(),
		PIDs: m.GetPids(), PIDsMax: m.GetPidsMax(), DiskBytes: m.GetDiskBytes(), DiskMaxBytes: m.GetDiskMaxBytes(),
		OOMKills: m.GetOomKills(), Checkpoints: m.GetCheckpoints(), CheckpointBytes: m.GetCheckpointBytes(),
		CheckpointMemoryBytes: m.GetCheckpointMemoryBytes(), TemplateCheckpointMemoryBytes: m.GetTemplateCheckpointMemoryBytes(),
		TemplateCheckpointMemoryMaxBytes: m.GetTemplateCheckpointMemoryMaxBytes(),
		AllCheckpointMemoryBytes:         m.GetAllCheckpointMemoryBytes(),
	}, nil
}

func (c *Client) sandbox(m *sandtreev1.Sandbox) *Sandbox {
	return &Sandbox{c: c, SandboxInfo: SandboxInfo{
		ID: m.GetId(), Name: m.GetName(), Template: m.GetTemplate(), TemplateID: m.GetTemplateId(),
		Hostname: m.GetHostname(), State: fromState(m.GetState()), LostReason: m.GetLostReason(), StateReason: m.GetStateReason(),
		Created: m.GetCreated().AsTime(), Resources: fromResources(m.GetResources()), Env: m.GetEnv(),
		Generation: m.GetGeneration(), At: m.GetAt(), ForkedFrom: m.GetForkedFrom(), StartSession: m.GetStartSession(),
	}}
}

func fromState(s sandtreev1.SandboxState) State {
	switch s {
	case sandtreev1.SandboxState_SANDBOX_STATE_RUNNING:
		return Running
	case sandtreev1.SandboxState_SANDBOX_STATE_PAUSED:
		return Paused
	case sandtreev1.SandboxState_SANDBOX_STATE_HIBERNATED:
		return Hibernated
	case sandtreev1.SandboxState_SANDBOX_STATE_LOST:
		return LostState
	}
	return Removed
}

func toResources(r Resources) *sandtreev1.Resources {
	return &sandtreev1.Resources{MemoryBytes: r.MemoryBytes, Cpus: r.CPUs, Pids: r.PIDs, DiskBytes: r.DiskBytes}
}

func fromResources(m *sandtreev1.Resources) Resources {
	return Resources{MemoryBytes: m.GetMemoryBytes(), CPUs: m.GetCpus(), PIDs: m.GetPids(), DiskBytes: m.GetDiskBytes()}
}
