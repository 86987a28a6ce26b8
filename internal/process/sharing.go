package process

import (
	"bytes"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// Types of kcmp(2), which needs no more than what ptrace needs.
const (
	kcmpVM      = 1
	kcmpFiles   = 2
	kcmpFS      = 3
	kcmpSighand = 4
)

// refuseSharing refuses processes that share what only threads of one process
// share with each other after restore: clone(2) with CLONE_VM, CLONE_FILES,
// CLONE_FS or CLONE_SIGHAND, without CLONE_THREAD. Sharing begins when a process
// does, so that only new ones are asked about.
func (l *Live) refuseSharing() error {
	for i, p := range l.order {
		if p.apart {
			continue
		}
		for j, q := range l.order {
			if i == j || !q.apart && j > i {
				continue // asked the other way round
			}
			what := ""
			switch {
			case bytes.Equal(p.memory.Text(), q.memory.Text()) && same(p, q, kcmpVM):
				what = "memory"
			case same(p, q, kcmpFiles):
				what = "table of descriptors"
			case same(p, q, kcmpFS):
				what = "current directory and umask"
			case same(p, q, kcmpSighand):
				what = "signal handlers"
			}
			if what != "" {
				return fault.New(fault.Uncapturable, "%s and %s are two processes that share one %s", describe(q), describe(p), what).
					WithHint("a checkpoint keeps that for threads alone").Passing() // a child that is about to execute a program
			}
		}
		p.apart = true
	}
	return nil
}

// same reports whether two processes share something.
func same(p, q *liveProcess, what uintptr) bool {
	r, _, e := unix.RawSyscall6(unix.SYS_KCMP, uintptr(p.via), uintptr(q.via), what, 0, 0, 0)
	return e == 0 && r == 0
}

// ownOf tells what a thread does not share with the others of its process, or "". It may
// part from them at any time (close_range(2), CLOSE_RANGE_UNSHARE), but never comes back.
func (p *liveProcess) ownOf(t *liveThread) string {
	switch {
	case t.host == p.via:
	case parted(p.via, t.host, kcmpFiles):
		return "table of descriptors"
	case parted(p.via, t.host, kcmpFS):
		return "current directory and umask"
	}
	return ""
}

// parted reports whether two threads of one process have each their own of something.
func parted(a, b int, what uintptr) bool {
	r, _, e := unix.RawSyscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), what, 0, 0, 0)
	return e == 0 && r != 0
}

// alikeThreads reports whether all threads have the leader's users, groups and
// bounds, and so can inherit them.
func alikeThreads(p *image.Process) bool {
	for _, t := range p.Threads {
		if !equalIdentity(&p.Threads[0].Creds, &t.Creds) {
			return false
		}
	}
	return true
}

// commonFilters is how many seccomp filters all threads have in common: those that
// they inherited, or that were given to all at once. They are installed before
// the threads are cloned, since the kernel gives filters to all threads later
// (SECCOMP_FILTER_FLAG_TSYNC) only if they share those that they have.
func commonFilters(p *image.Process) int {
	n := len(p.Threads[0].Filters)
	for _, t := range p.Threads {
		if !t.Creds.NoNewPrivs {
			return 0
		}
		n = min(n, len(t.Filters))
		for i := range n {
			if !bytes.Equal(t.Filters[i], p.Threads[0].Filters[i]) {
				n = i
				break
			}
		}
	}
	return n
}

// queueFilters has a thread install filters, in a batch that is begun, and returns
// the one to go on with.
func queueFilters(t *tracee.Tracee, b *tracee.Batch, filters [][]byte) (*tracee.Batch, error) {
	for _, f := range filters {
		if b.Full(8, len(f)+4096) {
			if err := t.Run(b); err != nil {
				return nil, err
			}
			b = tracee.NewBatch()
		}
		b.Call(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, b.PutWords(uint64(len(f)/8), uint64(b.Put(f))))
	}
	return b, nil
}

// equalIdentity compares all but capabilities, which are restored for each
// thread.
func equalIdentity(a, b *image.Credentials) bool {
	if a.UID != b.UID || a.GID != b.GID || a.Bounding != b.Bounding || a.NoNewPrivs != b.NoNewPrivs || len(a.Groups) != len(b.Groups) {
		return false
	}
	for i := range a.Groups {
		if a.Groups[i] != b.Groups[i] {
			return false
		}
	}
	return true
}
