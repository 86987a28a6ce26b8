package process

import (
	"bytes"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// queueNamespaces asks one process what belongs to the namespaces of all: the
// number that was given to a process last. The answer is taken by what it returns.
func (l *Live) queueNamespaces(b *tracee.Batch) (answer func() error) {
	text := b.Output(32)
	fd := b.Try(unix.SYS_OPEN, "/proc/sys/kernel/ns_last_pid", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	n := b.Try(unix.SYS_READ, fd, text, 31)
	b.Try(unix.SYS_CLOSE, fd)
	return func() error {
		l.lastPID = 0
		if b.Value(n) > 0 {
			l.lastPID, _ = number(bytes.TrimSpace(bytes.TrimRight(text.Bytes(), "\x00")))
		}
		return nil
	}
}

// askStop asks the parent of a stopped process whether wait(2) has told it.
func (l *Live) askStop(p *liveProcess) error {
	for _, q := range l.order {
		if q.pid != p.image.Parent {
			continue
		}
		b := tracee.NewBatchIn(areaOf(insideFDs, insideOps, insideEnd))
		info := b.Output(128)
		const idPID = 1 // P_PID
		got := b.Try(unix.SYS_WAITID, idPID, p.pid, info, unix.WSTOPPED|unix.WNOHANG|unix.WNOWAIT, 0)
		if err := q.threads[0].tracee.Run(b); err != nil {
			return l.injectError(q, err)
		}
		p.image.StopReported = b.Value(got) == 0 && u32(info.Bytes(), 0) == 0
	}
	return nil
}

// stops has processes stand by job control again, the way that they did. Their
// parents are told no more than they knew.
func (r *restore) stops() error {
	return r.each(func(n *newProcess) error {
		if n.image.State != image.Stopped {
			return nil
		}
		stopped, err := r.stop(n, n.image.StopSignal)
		if err == nil && !stopped {
			// A group whose parents are all gone ignores terminal stops.
			stopped, err = r.stop(n, int(unix.SIGSTOP))
		}
		if err == nil && !stopped {
			err = fault.New(fault.Internal, "it does not stop by signal %d", n.image.StopSignal)
		}
		if err != nil {
			return err
		}
		parent := r.procs[n.image.Parent]
		if parent == nil {
			return nil
		}
		b := tracee.NewBatch()
		b.Try(unix.SYS_RT_SIGTIMEDWAIT, b.PutWords(1<<(unix.SIGCHLD-1)), nil, b.PutWords(0, 0), 8)
		if n.image.StopReported {
			b.Try(unix.SYS_WAIT4, n.image.PID, nil, unix.WUNTRACED|unix.WNOHANG, nil)
		}
		return parent.tracee.Run(b)
	})
}

// stop has a process send itself a signal that stops it, and reports whether it
// did. It is traced, so that it can go on working for us all the same.
func (r *restore) stop(n *newProcess, sig int) (stopped bool, err error) {
	set := uint64(1) << (sig - 1)
	b := tracee.NewBatch()
	b.Call(unix.SYS_RT_SIGPROCMASK, unix.SIG_UNBLOCK, b.PutWords(set), nil, 8)
	b.Call(unix.SYS_KILL, n.image.PID, sig)
	b.Call(unix.SYS_RT_SIGPROCMASK, unix.SIG_BLOCK, b.PutWords(set), nil, 8)
	stopped, err = n.tracee.RunSignalled(b)
	return stopped, err
}
