package process

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/ptrace"
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// askedModes are the questions about a thread's modes, in its batch.
type askedModes struct {
	timeStamp    *tracee.Output
	speculation  [3]tracee.Ref
	machineCheck tracee.Ref
}

func (q *askedModes) ask(b *tracee.Batch) {
	q.timeStamp = b.Output(8)
	b.Try(unix.SYS_PRCTL, unix.PR_GET_TSC, q.timeStamp, 0, 0, 0)
	for i := range q.speculation {
		q.speculation[i] = b.Try(unix.SYS_PRCTL, unix.PR_GET_SPECULATION_CTRL, i, 0, 0, 0)
	}
	q.machineCheck = b.Try(unix.SYS_PRCTL, unix.PR_MCE_KILL_GET, 0, 0, 0, 0)
}

func (q *askedModes) answer(b *tracee.Batch, m *image.Modes) {
	m.TimeStamp = u32(q.timeStamp.Bytes(), 0)
	for i, r := range q.speculation {
		const own = unix.PR_SPEC_DISABLE | unix.PR_SPEC_FORCE_DISABLE | unix.PR_SPEC_DISABLE_NOEXEC
		m.Speculation[i] = 0
		if v := b.Value(r); v > 0 && v&unix.PR_SPEC_PRCTL != 0 {
			m.Speculation[i] = v & own
		}
	}
	if v := b.Value(q.machineCheck); v >= 0 {
		m.MachineCheck = v - unix.PR_MCE_KILL_DEFAULT
	}
}

// queueModes has a thread set what is not as at first. What this machine does not
// know is left.
func queueModes(b *tracee.Batch, m *image.Modes) {
	if m.TimeStamp == unix.PR_TSC_SIGSEGV {
		b.Call(unix.SYS_PRCTL, unix.PR_SET_TSC, m.TimeStamp, 0, 0, 0)
	}
	for i, v := range m.Speculation {
		if v != 0 {
			b.Try(unix.SYS_PRCTL, unix.PR_SET_SPECULATION_CTRL, i, v&-v, 0, 0) // one of them is asked for at a time
		}
	}
	if m.MachineCheck != 0 {
		b.Try(unix.SYS_PRCTL, unix.PR_MCE_KILL, unix.PR_MCE_KILL_SET, m.MachineCheck+unix.PR_MCE_KILL_DEFAULT, 0, 0)
	}
}

// holdDispatch has the system calls of a thread that stands be system calls: what it
// runs for us would raise signals in it. dispatch is what it had.
func (t *liveThread) holdDispatch() error {
	d, err := ptrace.GetSyscallDispatch(t.host)
	if errors.Is(err, unix.EIO) { // a kernel or machine without it
		d, err = ptrace.SyscallDispatch{}, nil
	}
	t.dispatch = d
	if err == nil && d.Mode != 0 {
		err = ptrace.SetSyscallDispatch(t.host, ptrace.SyscallDispatch{})
	}
	if err != nil {
		return fmt.Errorf("system call dispatch of thread %d: %w", t.host, err)
	}
	return nil
}

// giveDispatch gives it back.
func giveDispatch(tid int, d ptrace.SyscallDispatch) error {
	if d.Mode == 0 {
		return nil
	}
	return ptrace.SetSyscallDispatch(tid, d)
}
