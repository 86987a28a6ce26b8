package cgroup

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/sched"
)

// Recede makes the group's threads take the processors only when nobody else
// wants them (SCHED_IDLE, sched(7)): what is about to be killed has as much to
// give back as it had, and whoever replaces it is waited for. It is only a matter
// of speed, so there are no errors. [Group.Advance] takes it back; both do
// nothing to a group that is closed.
func (g *Group) Recede() { g.schedule("1", sched.Attr{Policy: unix.SCHED_IDLE}) }

// Advance gives the group's threads ordinary priority.
func (g *Group) Advance() { g.schedule("0", sched.Attr{Policy: sched.Other}) }

// schedule makes the group idle (cpu.idle, 5.15, in v1 and v2) or not, where it
// has the controller, and its threads otherwise.
func (g *Group) schedule(idle string, a sched.Attr) {
	if dir, _ := g.dirOf(CPU); dir != "" {
		if os.WriteFile(filepath.Join(dir, "cpu.idle"), []byte(idle), 0) == nil { //nolint:gosec // a file of the kernel's
			return
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	buf := make([]byte, mostReceding*8)
	n, err := unix.Pread(g.threads, buf, 0)
	if err != nil {
		return
	}
	for line := range strings.Lines(string(buf[:n])) {
		if tid, err := strconv.Atoi(strings.TrimSpace(line)); err == nil {
			_ = sched.Set(tid, a)
		}
	}
}

// mostReceding is how many threads recede one by one; what has more of them
// takes long to end in any case.
const mostReceding = 256
