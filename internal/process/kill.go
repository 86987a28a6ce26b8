package process

import (
	"golang.org/x/sys/unix"
)

// Kill ends the stopped tree without letting it run again.
func (l *Live) Kill() {
	for _, p := range l.procs {
		_ = unix.Kill(p.host, unix.SIGKILL)
	}
	// Threads that we trace hold up the end of their process until we have
	// reaped them, and leaders are told last.
	for _, p := range l.procs {
		for i := len(p.threads) - 1; i >= 0; i-- {
			if t := p.threads[i]; t.tracee != nil {
				reapTraced(t.host)
				t.tracee = nil
			}
		}
	}
	l.pin.give()
	l.stopped = false
}
