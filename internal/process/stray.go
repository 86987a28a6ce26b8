package process

import (
	"errors"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/ptrace"
)

// strayPatience is how long a thread that did not stop in time may take to
// stop after all, before the checkpoint is given up over it.
const strayPatience = 500 * time.Millisecond

// stray is a thread that was told to stop, and given up before it did. If it executes a
// program it gets its leader's number.
type stray struct{ tid, leader int }

// abandon lets go of threads that were told to stop and have no record. A
// thread that does not stop keeps our mark; it is let go when it does.
func (l *Live) abandon(ss []*seized) {
	for _, s := range ss {
		if st, changed, err := ptrace.TryWait(s.tid); err == nil && changed {
			l.release(stray{s.tid, s.leader}, st)
		} else {
			l.strays = append(l.strays, stray{s.tid, s.leader})
		}
		s.boost.lower(s.tid, new(int))
	}
}

// bury takes leave of threads that were killed while they stood: as long as that is not
// done nobody hears of their end, and an execve waits for it that has killed them. What
// has the number of one then is let go.
func (l *Live) bury(killed []stray) {
	if len(killed) > 0 {
		l.strays = append(l.strays, killed...)
		l.tendFor(patience)
	}
}

// Tend lets go of threads that were told to stop and did so only after the stop
// was given up, and reports whether there are more to come. After a Stop that
// failed it must be called from time to time until there are none: they stand
// until then.
func (l *Live) Tend() (more bool) {
	if l.stopped {
		return false
	}
	strays := l.strays
	l.strays = nil
	for _, s := range strays {
		switch st, changed, err := ptrace.TryWait(s.tid); {
		case err == unix.ECHILD:
			l.follow(s)
		case err == nil && changed:
			l.release(s, st)
		case err == nil:
			_ = ptrace.Interrupt(s.tid) // an execve makes it forget that it was told
			l.strays = append(l.strays, s)
		}
	}
	return len(l.strays) > 0
}

// follow looks for a stray, whose number is gone, by its leader's.
func (l *Live) follow(s stray) {
	if s.leader != 0 && s.leader != s.tid && !slices.Contains(l.strays, stray{s.leader, s.leader}) {
		l.strays = append(l.strays, stray{s.leader, s.leader})
	}
}

// release lets a stray go, if it stands. One that was killed since is waited for still.
func (l *Live) release(s stray, st ptrace.Status) {
	if !st.Stopped() {
		return
	}
	sig := 0
	if st.Event() == 0 {
		sig = st.Signal()
	}
	if errors.Is(ptrace.Detach(s.tid, sig), unix.ESRCH) {
		l.strays = append(l.strays, s)
	}
}

// forgetStrays forgets those that are no more, or stand as others do: all threads stand.
func (l *Live) forgetStrays() {
	l.strays = slices.DeleteFunc(l.strays, func(s stray) bool {
		if t := l.threads[s.tid]; t != nil && t.round == l.round {
			return true
		}
		_, changed, err := ptrace.TryWait(s.tid)
		return changed || err != nil
	})
}

// waitStrays waits for threads that were told to stop and did not, and lets
// them go. Until it has, they would stand as soon as they can.
func (l *Live) waitStrays() error {
	if l.tendFor(strayPatience) {
		return fault.New(fault.Uncapturable, "%s waits in the kernel and has not stopped for %v", describeThread(l.strays[0].tid), strayPatience).
			WithHint("the sandbox goes on; it may wait for a child that shares its memory (vfork), or for a device; try again")
	}
	return nil
}

// tendFor is Tend for some time, and reports whether strays are left.
func (l *Live) tendFor(d time.Duration) bool {
	for deadline := time.Now().Add(d); len(l.strays) > 0; {
		s := l.strays[0]
		switch st, err := l.wait(s.tid, briefly); err {
		case unix.EINTR: // it may wait for another of them
			if l.Tend() && time.Now().After(deadline) {
				return true
			}
			continue
		case nil:
			l.release(s, st)
		case unix.ECHILD:
			l.follow(s)
		}
		l.strays = l.strays[1:]
	}
	return false
}
