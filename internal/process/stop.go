package process

import (
	"errors"
	"fmt"
	"sort"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/failpoint"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/ptrace"
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
