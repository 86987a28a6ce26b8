package process

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/ptrace"
)

// Parents of vfork(2), and of posix_spawn(3), which is made of it, cannot stop:
// they wait in the kernel until their child executes a program or ends. So the
// child goes on until it has, while all others stand. That takes well below a
// millisecond in all programs that do what vfork is for.

// waitsForChild reports whether a thread was told to stop in this stop, and waits
// for its child.
func (l *Live) waitsForChild(tid int) bool {
	return slices.ContainsFunc(l.vforks, func(s *seized) bool { return s.tid == tid })
}

// inVfork reports whether a thread is in vfork(2), or in a clone(2) that waits as
// vfork does.
func inVfork(tid int) bool {
	var buf [256]byte
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/syscall", tid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, buf[:])
	if err != nil {
		return false
	}
	f := bytes.Fields(buf[:n])
	if len(f) < 2 {
		return false // it runs
	}
	switch nr, _ := strconv.Atoi(string(f[0])); nr {
	case unix.SYS_VFORK, unix.SYS_CLONE3: // clone3 has its flags in memory
		return true
	case unix.SYS_CLONE:
		flags, err := strconv.ParseUint(string(f[1]), 0, 64)
		return err == nil && flags&unix.CLONE_VFORK != 0
	}
	return false
}

// passVforks has the children that somebody waits for go on until they have a
// memory of their own, or none, and waits for their parents to stand.
func (l *Live) passVforks() error {
	deadline := time.Now().Add(patience)
	for len(l.vforks) > 0 {
		for _, s := range l.vforks {
			for _, t := range l.childrenIn(s.tid) {
				if err := l.untilExec(t, deadline); err != nil {
					return err
				}
			}
		}
		if time.Now().After(deadline) {
			return unstoppable(l.vforks[0].tid)
		}
		waiting := l.vforks
		l.vforks = nil
		for i, s := range waiting {
			there, err := l.await(s) // in vfork still: it is in the list again
			if err != nil {
				l.vforks = append(l.vforks, waiting[i:]...)
				return err
			}
			if !there {
				l.vforks = append(l.vforks, s)
			}
		}
		if _, err := l.reap(); err != nil {
			return err
		}
	}
	return nil
}

// childrenIn are the threads that stand and use the memory of a thread that waits
// for them.
func (l *Live) childrenIn(tid int) (out []*liveThread) {
	st, err := readStatus(tid)
	if err != nil {
		return nil
	}
	leader := st.leader
	for _, t := range l.threads {
		if t.round != l.round || t.tracee == nil || t.host == tid {
			continue
		}
		same, _, e := unix.RawSyscall6(unix.SYS_KCMP, uintptr(tid), uintptr(t.host), kcmpVM, 0, 0, 0)
		if e == 0 && same == 0 && parentOf(t.host) == leader {
			out = append(out, t)
		}
	}
	return out
}

// parentOf is the number of a thread's parent on the host; 0 if it is gone.
func parentOf(tid int) int {
	st, err := readStatus(tid)
	if err != nil {
		return 0
	}
	return st.parent
}

// untilExec has a child of vfork go on, as itself and behind its walls, and stops
// it right behind its execve. Its record goes: it is another program then.
func (l *Live) untilExec(t *liveThread, deadline time.Time) error {
	if t.jobStop != 0 {
		return fault.New(fault.Uncapturable, "%s was stopped by job control, and its parent waits in vfork until it executes a program", describe(t.process)).
			WithHint("let it go on, then try again").Passing()
	}
	s := &seized{tid: t.host, leader: t.process.host, boost: t.boost}
	err := t.tracee.SetRegisters(l.resumeRegisters(t))
	if err == nil {
		err = ptrace.SetOptions(t.host, unix.PTRACE_O_TRACEEXEC)
	}
	if err == nil {
		err = ptrace.SetSigmask(t.host, t.mask)
	}
	if err == nil {
		err = giveDispatch(t.host, t.dispatch)
	}
	if err == nil && l.pin.on {
		_ = unix.SchedSetaffinity(t.host, &t.affinity)
	}
	if err == nil {
		err = ptrace.Continue(t.host, t.deliver)
	}
	if err != nil {
		return fmt.Errorf("let thread %d execute a program: %w", t.host, err)
	}
	l.dropThread(t)
	for {
		st, err := l.wait(s.tid, max(time.Until(deadline), briefly))
		switch {
		case err == unix.EINTR:
			_ = ptrace.Interrupt(s.tid)
			l.abandon([]*seized{s})
			return unstoppable(s.tid)
		case err == unix.ECHILD || err == nil && !st.Stopped():
			return nil
		case err != nil:
			return fmt.Errorf("wait for thread %d: %w", s.tid, err)
		case st.Event() == unix.PTRACE_EVENT_EXEC:
			// It stands within the call here, and would spoil what we ran in it.
			if err = ptrace.Interrupt(s.tid); err == nil {
				err = ptrace.Continue(s.tid, 0)
			}
			if err != nil {
				l.abandon([]*seized{s})
				return err
			}
			return l.awaitAll([]*seized{s})
		case st.Event() == unix.PTRACE_EVENT_STOP && st.Signal() != int(unix.SIGTRAP):
			l.release(stray{s.tid, s.leader}, st)
			s.boost.lower(s.tid, new(int))
			return unstoppable(s.tid)
		}
		sig := 0
		if st.Event() == 0 {
			sig = st.Signal()
		}
		if err := ptrace.Continue(s.tid, sig); err != nil && err != unix.ESRCH {
			return fmt.Errorf("continue thread %d: %w", s.tid, err)
		}
	}
}

// unstoppable is the error of a thread that does not stop.
func unstoppable(tid int) error {
	return fault.New(fault.Uncapturable, "stop %s: %w", describeThread(tid), errUnstoppable).
		WithHint("it may wait for a child that shares its memory (vfork), or for a device; try again")
}
