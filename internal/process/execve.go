package process

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/ptrace"
	"github.com/sandtree/sandtree/internal/linux/sched"
	"github.com/sandtree/sandtree/internal/tracee"
)

// A thread that executes a program kills all other threads of its process, those that
// stand as well, and waits until they are gone: for one that is traced, until its tracer
// has waited for it. Then it takes its leader's number, and its own is gone (ptrace(2),
// "execve(2) under ptrace").

// reap looks whether all that stand still do, forgets those that do not, and reports
// whether there were any. Who has the number of one, and stands, is a new thread.
func (l *Live) reap() (changed bool, err error) {
	for tid, t := range l.threads {
		if t.round != l.round || t.tracee == nil {
			continue
		}
		st, ok, e := ptrace.TryWait(tid)
		if e == nil && !ok {
			var regs tracee.Registers
			if ptrace.GetRegs(tid, &regs.PtraceRegs) == nil {
				continue
			}
			// It was killed, and is about to end; or who executed a program has its number, and
			// forgot that it was told to stop.
			changed = true
			_ = ptrace.Interrupt(tid)
			if st, e = l.wait(tid, briefly); e == unix.EINTR {
				continue
			}
		}
		changed = true
		l.dropThread(t)
		if e == nil && st.Stopped() {
			there, err := l.standOrEnd(&seized{tid: tid, leader: tid}, st)
			if err != nil {
				return true, err
			}
			if !there {
				l.strays = append(l.strays, stray{tid, tid})
			}
		}
	}
	return changed, nil
}

// adopt tells a thread to stop that is traced by this thread already: it executed a
// program after it was told under another number.
func (l *Live) adopt(s *seized) error {
	s.boost.lower(s.tid, new(int)) // what it found is what we gave
	if t := l.threads[s.tid]; t != nil {
		l.dropThread(t)
	}
	s.known, s.status, s.leader = nil, nil, s.tid
	if err := ptrace.Interrupt(s.tid); err != nil && err != unix.ESRCH {
		return fmt.Errorf("interrupt thread %d: %w", s.tid, err)
	}
	return nil
}

// move goes on waiting for a thread whose number is gone under its leader's, which it
// has got, and reports whether nothing is left to wait for. Who had that is no more.
func (l *Live) move(s *seized) (there bool, err error) {
	if s.leader == 0 || s.leader == s.tid || l.undertaker.buried(s.tid) {
		return true, nil
	}
	st, changed, e := ptrace.TryWait(s.leader)
	var regs tracee.Registers
	t := l.threads[s.leader]
	if e == nil && !changed && t != nil && t.round == l.round && ptrace.GetRegs(s.leader, &regs.PtraceRegs) == nil {
		return true, nil // it stands, and was waited for under that number
	}
	if t != nil {
		l.dropThread(t)
	}
	s.tid, s.known, s.status = s.leader, nil, nil
	switch {
	case e != nil || changed && !st.Stopped():
		return true, nil // it ended
	case changed:
		return l.standOrEnd(s, st)
	}
	return false, nil
}

// hurryKilled gives the threads of a process that were killed, but did not come to end
// yet, a processor before others.
func hurryKilled(leader int) {
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", leader))
	if err != nil {
		return
	}
	for _, e := range tasks {
		tid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		text, err := statusText(tid)
		if err != nil {
			continue
		}
		_, pending, ok := bytes.Cut(text, []byte("\nSigPnd:\t"))
		if !ok || len(pending) < 16 {
			continue
		}
		if set, err := strconv.ParseUint(string(pending[:16]), 16, 64); err == nil && set&(1<<(unix.SIGKILL-1)) != 0 {
			_ = sched.Realtime(tid, true)
		}
	}
}

// tracer is the thread that traces a thread; 0: none.
func tracer(tid int) (int, error) {
	text, err := statusText(tid)
	if err != nil {
		return 0, err
	}
	return lastNumber(text, "\nTracerPid:")
}

// traces reports whether this OS thread traces a thread.
func (l *Live) traces(tid int) bool {
	n, err := tracer(tid)
	return err == nil && n == unix.Gettid()
}

// trySeize is [ptrace.Seize], that is not misled by a number which changes hands: nobody
// may trace a leader that was just killed by an execve, which then gives its number to
// another thread.
func trySeize(tid int) (err error) {
	for range 10 {
		if err = ptrace.Seize(tid, 0); err != unix.EPERM {
			return err
		}
		if n, e := tracer(tid); e != nil || n != 0 || ended(tid) {
			return err
		}
	}
	return err
}
