package control

import (
	"time"
)

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
