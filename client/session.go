package client

import (
	"context"
	"math"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	sandtreev1 "github.com/sandtree/sandtree/api/sandtree/v1"
)

// Window is the size of a terminal, in characters.
type Window struct {
	Rows, Cols uint16
}

// Command says what to run in a sandbox.
type Command struct {
	Argv    []string // Argv[0] without a slash is looked up in PATH inside
	Env     map[string]string
	Dir     string // default: the template's, else the user's home, else /
	User    string // a name or uid[:gid]; default: the template's, else root
	TTY     bool   // run it on a terminal of its own
	Window  Window
	NoStdin bool          // an empty standard input
	Timeout time.Duration // kill it after this; 0: never
}

// SessionInfo describes a session as it was when the call returned.
type SessionInfo struct {
	ID      string    `json:"id"`
	Sandbox string    `json:"sandbox"`
	Argv    []string  `json:"argv"`
	TTY     bool      `json:"tty"`
	PID     int64     `json:"pid"` // inside
	Started time.Time `json:"started"`
	Ended   bool      `json:"ended"`
	EndedAt time.Time `json:"ended_at,omitzero"`
	// ExitCode is 128+signal for a command that a signal ended.
	ExitCode int `json:"exit_code"`
	// Reason is empty for an ordinary end, or "rolled back", "oom",
	// "sandbox ended", "lost" or "timeout".
	Reason      string `json:"reason,omitempty"`
	Generation  uint64 `json:"generation"`
	StdoutBytes uint64 `json:"stdout_bytes"`
	StderrBytes uint64 `json:"stderr_bytes"`
	Attached    uint32 `json:"attached"` // clients
}

// Session is a command with its terminal or pipes and the log of its output.
// It outlives the clients that are attached to it.
type Session struct {
	SessionInfo
	c *Client
}

// Start starts a command and returns at once; nobody is attached to it.
func (s *Sandbox) Start(ctx context.Context, cmd Command) (*Session, error) {
	r, err := s.c.sessions.Exec(ctx, connect.NewRequest(s.exec(cmd)))
	if err != nil {
		return nil, wrap(err)
	}
	return &Session{SessionInfo: fromSession(r.Msg.GetSession()), c: s.c}, nil
}

// Exec starts a command and attaches to it, in one round trip. The context
// bounds the attachment, not the command.
func (s *Sandbox) Exec(ctx context.Context, cmd Command) (*Attachment, error) {
	return s.c.attach(ctx, &sandtreev1.AttachOpen{Target: &sandtreev1.AttachOpen_Exec{Exec: s.exec(cmd)}})
}

// Run runs a command to its end, with these streams. See [Attachment.Copy].
func (s *Sandbox) Run(ctx context.Context, cmd Command, io Stdio) (SessionInfo, error) {
	if io.In == nil {
		cmd.NoStdin = true
	}
	a, err := s.Exec(ctx, cmd)
	if err != nil {
		return SessionInfo{}, err
	}
	defer a.Close()
	return a.Copy(io)
}

// Sessions lists the sandbox's sessions, oldest first, the ended ones too.
func (s *Sandbox) Sessions(ctx context.Context) ([]*Session, error) {
	r, err := s.c.sessions.List(ctx, connect.NewRequest(&sandtreev1.ListSessionsRequest{Sandbox: s.ID}))
	if err != nil {
		return nil, wrap(err)
	}
	all := make([]*Session, 0, len(r.Msg.GetSessions()))
	for _, m := range r.Msg.GetSessions() {
		all = append(all, &Session{SessionInfo: fromSession(m), c: s.c})
	}
	return all, nil
}

// SessionHandle returns a handle of a session by id, without asking the
// daemon.
func (c *Client) SessionHandle(id string) *Session {
	return &Session{SessionInfo: SessionInfo{ID: id}, c: c}
}

// AttachOptions say where an attachment begins in the session's log, and
// where it ends.
type AttachOptions struct {
	// From is where to begin. Nil: the last 64 KiB.
	From *Position
	// NoFollow ends the attachment at the log's present end.
	NoFollow bool
	// Sandbox, a name or id, must be the session's if it is given.
	Sandbox string
}

// Position is a place in a session's log: bytes since the session began. A
// terminal has stdout alone.
type Position struct {
	Stdout uint64 `json:"stdout"`
	Stderr uint64 `json:"stderr"`
}

// Attach joins the session. The context bounds the attachment.
func (s *Session) Attach(ctx context.Context, o AttachOptions) (*Attachment, error) {
	open := &sandtreev1.AttachOpen{
		Target:  &sandtreev1.AttachOpen_Session{Session: s.ID},
		Sandbox: o.Sandbox, NoFollow: o.NoFollow,
	}
	if o.From != nil {
		open.From = &sandtreev1.LogPosition{StdoutOffset: o.From.Stdout, StderrOffset: o.From.Stderr}
	}
	return s.c.attach(ctx, open)
}

// Kill sends a signal to the session's process group; 0 means SIGTERM.
// Sandbox, a name or id, must be the session's if it is given.
func (s *Session) Kill(ctx context.Context, signal int, sandbox string) error {
	_, err := s.c.sessions.Kill(ctx, connect.NewRequest(&sandtreev1.KillRequest{Session: s.ID, Signal: toSignal(signal), Sandbox: sandbox}))
	return wrap(err)
}

// toSignal keeps a number that is no signal one that is none.
func toSignal(n int) int32 { return int32(max(-1, min(n, math.MaxInt32))) } //nolint:gosec // bounded

// Wait returns the session's final state when it has ended.
func (s *Session) Wait(ctx context.Context) (SessionInfo, error) {
	r, err := s.c.sandboxes.Wait(ctx, connect.NewRequest(&sandtreev1.WaitRequest{Sandbox: s.Sandbox, Session: s.ID}))
	if err != nil {
		return SessionInfo{}, wrap(err)
	}
	return fromSession(r.Msg.GetSession()), nil
}

func (s *Sandbox) exec(cmd Command) *sandtreev1.ExecRequest {
	r := &sandtreev1.ExecRequest{
		Sandbox: s.ID, Argv: cmd.Argv, Env: cmd.Env, Dir: cmd.Dir, User: cmd.User, Tty: cmd.TTY,
		StdinClosed: cmd.NoStdin, Window: toWindow(cmd.Window),
	}
	if cmd.Timeout > 0 {
		r.Timeout = durationpb.New(cmd.Timeout)
	}
	return r
}

func toWindow(w Window) *sandtreev1.Window {
	return &sandtreev1.Window{Rows: uint32(w.Rows), Cols: uint32(w.Cols)}
}

func fromSession(m *sandtreev1.Session) SessionInfo {
	i := SessionInfo{
		ID: m.GetId(), Sandbox: m.GetSandbox(), Argv: m.GetArgv(), TTY: m.GetTty(), PID: m.GetPid(),
		Started: m.GetStarted().AsTime(), Ended: m.GetEnded(), ExitCode: int(m.GetExitCode()), Reason: m.GetReason(),
		Generation: m.GetGeneration(), StdoutBytes: m.GetStdoutBytes(), StderrBytes: m.GetStderrBytes(), Attached: m.GetAttached(),
	}
	if m.GetEndedAt() != nil {
		i.EndedAt = m.GetEndedAt().AsTime()
	}
	return i
}
