package process

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/ptrace"
	"github.com/sandtree/sandtree/internal/tracee"
)

// await waits briefly until a thread stands, and reads its registers. A parent of
// vfork is put aside. It reports whether nothing is left to wait for.
func (l *Live) await(s *seized) (there bool, err error) {
	t := l.threads[s.tid]
	if t != nil && t.round == l.round {
		return true, nil // two had this number: it was waited for as the other one
	}
	if s.known != t { // and that was its leader's, which is no more
		s.known, s.status = nil, nil
	}
	st, err := l.wait(s.tid, briefly)
	switch {
	case err == unix.EINTR && inVfork(s.tid):
		l.vforks = append(l.vforks, s)
		return true, nil
	case err == unix.EINTR:
		return false, nil
	case err == unix.ECHILD:
		return l.move(s)
	case err != nil:
		return false, fmt.Errorf("wait for thread %d: %w", s.tid, err)
	case !st.Stopped():
		return true, nil // it ended
	}
	return l.standOrEnd(s, st)
}

// standOrEnd is stand, for a thread that may be killed meanwhile by an execve of another.
// Who waits for its end is the same as if it had come to stand.
func (l *Live) standOrEnd(s *seized, st ptrace.Status) (there bool, err error) {
	err = l.stand(s, st)
	switch t := l.threads[s.tid]; {
	case err == nil:
	case errors.Is(err, unix.ESRCH):
		if t != nil {
			l.dropThread(t)
		}
		s.known = nil
		return false, nil
	case t == nil || t.tracee == nil: // nobody knows that it stands
		l.release(stray{s.tid, s.leader}, st)
		s.boost.lower(s.tid, new(int))
	}
	return true, err
}

// stand makes a thread that has come to stand one of those that stand.
func (l *Live) stand(s *seized, st ptrace.Status) (err error) {
	t := s.known
	if t == nil {
		if t, err = l.meet(s); err != nil {
			return err
		}
	}
	if err := ptrace.SetOptions(s.tid, tracee.OptionsLive); err != nil {
		return fmt.Errorf("options of thread %d: %w", s.tid, err)
	}
	t.round, t.boost = l.round, s.boost
	t.process.round = l.round
	t.deliver = 0
	t.jobStop = 0
	if st.Event() == unix.PTRACE_EVENT_STOP && st.Signal() != int(unix.SIGTRAP) {
		t.jobStop = st.Signal()
	}
	if st.Event() == 0 { // it stopped on its way to a signal's delivery
		t.deliver = st.Signal()
		if t.pending, err = ptrace.PendingSignal(s.tid); err != nil {
			return fmt.Errorf("signal of thread %d: %w", s.tid, err)
		}
	}
	if err := ptrace.GetRegs(s.tid, &t.regs.PtraceRegs); err != nil {
		return fmt.Errorf("registers of thread %d: %w", s.tid, err)
	}
	if err := unix.SchedGetaffinity(s.tid, &t.affinity); err != nil {
		return fmt.Errorf("processors of thread %d: %w", s.tid, err)
	}
	l.pin.hold(s.tid)
	t.tracee = tracee.Stopped(s.tid, t.regs)
	t.noteWait()
	if err := t.holdDispatch(); err != nil {
		return err
	}
	return t.blockSignals()
}

// whileStopped is the mask of a thread while it stands: a signal would end
// what it runs for us. A trap that is blocked would lose its handler.
const whileStopped = ^uint64(0) &^ (1 << (unix.SIGTRAP - 1))

// blockSignals keeps signals waiting until the thread goes on. One that waits
// for signals with another mask (sigsuspend(2) and its like) starts its call
// anew then, with the mask.
func (t *liveThread) blockSignals() (err error) {
	if t.mask, err = ptrace.GetSigmask(t.host); err == nil {
		err = ptrace.SetSigmask(t.host, whileStopped)
	}
	if err != nil {
		return fmt.Errorf("signal mask of thread %d: %w", t.host, err)
	}
	return nil
}

// wait waits for a thread to change, at most for d; then the error is EINTR.
// Other signals interrupt the wait too, the runtime's own among them.
func (l *Live) wait(tid int, d time.Duration) (st ptrace.Status, err error) {
	l.alarm.set(d)
	defer l.alarm.set(0)
	for start := time.Now(); ; {
		st, err = ptrace.WaitInterruptible(tid)
		if err != unix.EINTR || time.Since(start) >= d {
			return st, err
		}
	}
}

// returnTraps gives a thread, whose own mask holds again, the signals that came
// while it ran for us: one as what it is about to get, which the kernel queues
// again if it is blocked, others newly. A second trap was its process's, since a
// thread gets its own first, and has one at most.
func (t *liveThread) returnTraps() {
	trapped := t.deliver == int(unix.SIGTRAP)
	for _, si := range t.tracee.Traps {
		sig := unix.Signal(binary.LittleEndian.Uint32(si[:]))
		switch {
		case t.deliver == 0:
			t.deliver, t.pending = int(sig), si
		case sig == unix.SIGTRAP && trapped:
			_ = unix.Kill(t.process.host, sig)
		default:
			_ = unix.Tgkill(t.process.host, t.host, sig)
		}
		trapped = trapped || sig == unix.SIGTRAP
	}
}
