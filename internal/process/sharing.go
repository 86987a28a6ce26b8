package process

import (
	"bytes"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/process/image"
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
	r, _, e := unix.RawSyscall6(unix.SYS_KCMP, uintptr(p.host), uintptr(q.host), what, 0, 0, 0)
	return e == 0 && r == 0
}

// refuseThreads refuses threads that differ in what restore gives to all of a
// process.
func (l *Live) refuseThreads(p *liveProcess) error {
	if len(p.image.Threads) == 0 {
		return nil
	}
	lead := p.image.Threads[0]
	for _, t := range p.image.Threads[1:] {
		if !equalIdentity(&lead.Creds, &t.Creds) {
			return fault.New(fault.Uncapturable, "%s has a thread (%d) with a user, groups or bounds of its own", describe(p), t.TID)
		}
	}
	return nil
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
