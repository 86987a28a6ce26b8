package process

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sort"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/failpoint"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/ptrace"
	"github.com/sandtree/sandtree/internal/tracee"
)

// patience is how long a thread may take to stop; briefly is how long nearly all
// take, at most. After that it is asked why.
const (
	patience = 50 * time.Millisecond
	briefly  = time.Millisecond
	// stopBound is how long a stop looks for more threads at most, beyond a millisecond for
	// each.
	stopBound = 2 * time.Second
)

// failListed is where threads were listed and none was told to stop yet. They come, go and change their numbers
// meanwhile.
var failListed = failpoint.New("process.stop.listed")

// errUnstoppable is the cause of a stop that failed over a thread that does
// not stop now but may a little later.
var errUnstoppable = errors.New("a thread waits in the kernel and does not stop")

// errRestless is the cause of a stop that failed over threads that come and go faster than
// they are told to stop. It took its time, and is not tried again.
var errRestless = errors.New("its processes start threads, or execute programs, faster than they can be stopped")

// stopTries is how often a stop is tried over a thread that does not stop.
const stopTries = 3

// Stop stops every thread. If one does not stop, all go on and the error is of
// kind Uncapturable.
func (l *Live) Stop() error {
	var err error
	for range stopTries {
		if err = l.stopOnce(); !errors.Is(err, errUnstoppable) {
			break
		}
		// What it waits for goes on now, so that it can stop, and be let go.
		if e := l.waitStrays(); e != nil {
			return errors.Join(err, e)
		}
	}
	if err != nil {
		return errors.Join(err, l.waitStrays())
	}
	l.forgetStrays()
	l.drop()
	l.order = l.order[:0]
	for _, p := range l.procs {
		if err := p.face(); err != nil {
			return errors.Join(err, l.Resume())
		}
		l.order = append(l.order, p)
	}
	sort.Slice(l.order, func(i, j int) bool { return l.order[i].pid < l.order[j].pid })
	return nil
}

func (l *Live) stopOnce() error {
	l.round++
	l.stopped = true
	if l.cfg.Realtime {
		l.pin.take()
	}
	if err := l.stopAll(); err != nil {
		return errors.Join(err, l.Resume())
	}
	return nil
}

// stopAll seizes and interrupts until a look at the cgroup shows no thread that
// does not stand. Threads that stand start no others, so it ends.
func (l *Live) stopAll() error {
	l.undertaker.begin()
	err := l.stopEach()
	l.undertaker.end()
	if err != nil {
		l.abandon(l.vforks)
	}
	l.vforks = nil
	return err
}

func (l *Live) stopEach() error {
	var started []*seized
	for begun := time.Now(); ; {
		tids, err := l.tasks()
		if err != nil {
			return err
		}
		if bound := stopBound + time.Duration(len(tids))*time.Millisecond; time.Since(begun) > bound {
			return fault.New(fault.Uncapturable, "stop the sandbox within %v: %w", bound, errRestless).
				WithHint("try again when fewer of them do so all the time")
		}
		if err := failListed.Hit(); err != nil {
			return err
		}
		started = started[:0]
		missed := false
		for _, tid := range tids {
			if tid == l.cfg.Init {
				continue
			}
			if t := l.threads[tid]; t != nil && t.round == l.round || l.waitsForChild(tid) {
				continue
			}
			s, err := l.seize(tid)
			if err != nil {
				return errors.Join(err, l.awaitAll(started))
			}
			if s != nil {
				started = append(started, s)
			}
			missed = missed || s == nil
		}
		switch {
		case len(started) > 0:
			err = l.awaitAll(started)
		case missed:
			// It has ended, or has taken its leader's number by an execve since it was listed.
		case len(l.vforks) > 0:
			err = l.passVforks()
		default:
			var changed bool
			if changed, err = l.reap(); err == nil && !changed {
				return nil
			}
		}
		if err != nil {
			return err
		}
	}
}

// awaitAll waits for threads that were told to stop. After an error none of
// them is traced without a record, or noted as a stray.
func (l *Live) awaitAll(started []*seized) error {
	deadline := time.Now().Add(patience)
	for {
		late := started[:0]
		for i, s := range started {
			there, err := l.await(s)
			if err != nil {
				l.abandon(late)
				l.abandon(started[i:])
				return err
			}
			if !there {
				late = append(late, s)
			}
		}
		if started = late; len(started) == 0 {
			return nil
		}
		// It may be in an execve, which waits for those that it has killed: threads that
		// stand, and others that find no processor to end on.
		for _, s := range started {
			hurryKilled(s.leader)
			_ = ptrace.Interrupt(s.tid) // an execve makes it forget that it was told
		}
		if _, err := l.reap(); err != nil {
			l.abandon(started)
			return err
		}
		if time.Now().After(deadline) {
			err := unstoppable(started[0].tid)
			l.abandon(started)
			return err
		}
	}
}

// seized is a thread that was told to stop.
type seized struct {
	tid    int
	leader int         // of its process, as far as it is known
	status *status     // of a new one
	known  *liveThread // nil: a new one
	boost  boost
}

// seize tells a thread to stop. Nil without an error: it has ended.
func (l *Live) seize(tid int) (*seized, error) {
	s := &seized{tid: tid, known: l.known(tid)}
	if s.known != nil {
		s.leader = s.known.process.host
	} else if st, err := readStatus(tid); err == nil {
		s.leader, s.status = st.leader, &st
	}
	if l.cfg.Realtime {
		s.boost.raise(tid)
	}
	if i := slices.IndexFunc(l.strays, func(x stray) bool { return x.tid == tid }); i >= 0 { // told already, at an earlier stop
		l.strays = slices.Delete(l.strays, i, i+1)
		return s, nil
	}
	// Its filter holds until it stands: it runs on until then.
	err := trySeize(tid)
	if err == nil {
		err = ptrace.Interrupt(tid)
	}
	switch {
	case err == nil:
		l.undertaker.traces(tid)
		return s, nil
	case err == unix.ESRCH || err == unix.EPERM && ended(tid):
		return nil, nil
	case err == unix.EPERM && l.traces(tid):
		return s, l.adopt(s)
	case err == unix.EPERM:
		s.boost.lower(tid, new(int))
		return nil, fault.New(fault.Uncapturable, "%s is traced by another process inside (a debugger), or belongs to the kernel", describeThread(tid)).
			WithHint("end the debugger, or detach it, and try again")
	}
	s.boost.lower(tid, new(int))
	return nil, fmt.Errorf("seize thread %d: %w", tid, err)
}

// known returns the record of a thread, unless another one has its number by
// now.
func (l *Live) known(tid int) *liveThread {
	t := l.threads[tid]
	if t == nil {
		return nil
	}
	p := t.process
	if unix.PidfdSendSignal(p.pidfd, 0, nil, 0) == nil && unix.Tgkill(p.host, tid, 0) == nil {
		return t
	}
	l.dropThread(t)
	return nil
}

// describeThread names a thread that has no record to the user.
func describeThread(tid int) string {
	st, err := readStatus(tid)
	if err != nil {
		return fmt.Sprintf("thread %d", tid)
	}
	return fmt.Sprintf("process %d (%s)", st.group, st.name)
}

// ended reports whether a thread is gone, or as good as gone.
func ended(tid int) bool {
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/stat", tid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return true
	}
	defer unix.Close(fd)
	var buf [2048]byte
	n, err := unix.Read(fd, buf[:])
	if err != nil {
		return true
	}
	s, err := parseStat(buf[:n])
	return err != nil || s.state == 'Z' || s.state == 'X'
}

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

// tasks lists the threads of the cgroup.
func (l *Live) tasks() ([]int, error) {
	n := 0
	for {
		if n == len(l.buf) {
			l.buf = append(l.buf, make([]byte, len(l.buf))...)
		}
		k, err := unix.Pread(l.cfg.Threads, l.buf[n:], int64(n))
		if err != nil {
			return nil, fmt.Errorf("list threads: %w", err)
		}
		if k == 0 {
			break
		}
		n += k
	}
	l.tids = l.tids[:0]
	v, any := 0, false
	for _, c := range l.buf[:n] {
		if c >= '0' && c <= '9' {
			v, any = v*10+int(c-'0'), true
		} else if any {
			l.tids = append(l.tids, v)
			v, any = 0, false
		}
	}
	return l.tids, nil
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

// Resume lets every thread go on as it was.
func (l *Live) Resume() error {
	var first error
	var killed []stray
	for _, t := range l.threads { // all stand while descriptors are looked at
		if t.round == l.round && t.tracee != nil {
			t.regs = l.resumeRegisters(t)
		}
	}
	for _, t := range l.threads {
		if t.round != l.round || t.tracee == nil {
			continue
		}
		err := t.tracee.SetRegisters(t.regs)
		if err == nil {
			err = ptrace.SetSigmask(t.host, t.mask)
		}
		if err == nil {
			err = giveDispatch(t.host, t.dispatch)
		}
		if err == nil {
			if l.pin.on {
				_ = unix.SchedSetaffinity(t.host, &t.affinity) // it was its own
			}
			t.boost.lower(t.host, &t.slack)
			t.returnTraps()
			if t.deliver != 0 {
				// What it ran meanwhile ended with a signal of its own.
				_ = ptrace.SetPendingSignal(t.host, &t.pending)
			}
			err = ptrace.Detach(t.host, t.deliver)
		}
		if errors.Is(err, unix.ESRCH) { // killed meanwhile
			killed = append(killed, stray{t.host, t.process.host})
		} else if err != nil && first == nil {
			first = fmt.Errorf("let thread %d go on: %w", t.tid, err)
		}
		t.tracee = nil
	}
	l.pin.give()
	l.stopped = false
	l.bury(killed)
	return first
}
