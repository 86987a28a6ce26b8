package process

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/ptrace"
)

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
