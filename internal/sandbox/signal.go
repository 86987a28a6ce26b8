package sandbox

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/tracee"
)

// Signal sends a signal to a process by its number inside. It is PID 1 that
// sends it, and that reaps what has ended, so the number cannot be another
// process's by then if the caller knows that this one was not reported.
func (i *Incarnation) Signal(pid int, sig unix.Signal) error { return i.kill1(pid, pid, sig) }

// SignalGroup sends a signal to a process group by its number inside, that of
// its first leader. It exists as long as it has a member.
func (i *Incarnation) SignalGroup(pgid int, sig unix.Signal) error {
	return i.kill1(pgid, -pgid, sig)
}

func (i *Incarnation) kill1(pid, target int, sig unix.Signal) error {
	if pid <= 1 {
		return fault.New(fault.Invalid, "signal process %d: it is not a command's", pid)
	}
	if sig < 0 || sig > lastSignal {
		return fault.New(fault.Invalid, "signal process %d: there is no signal %d", pid, int(sig))
	}
	b := tracee.NewBatch()
	b.Call(unix.SYS_KILL, target, sig)
	err := i.Do(b)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ESRCH):
		return fault.New(fault.NotFound, "signal process %d: it has ended", pid)
	}
	return doError("signal a process", err)
}
