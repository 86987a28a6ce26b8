package process

import (
	"bytes"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

// parentsFirst sorts processes so that each stands behind its parent, siblings in
// the order in which wait(2) finds them, as children tells their numbers.
func parentsFirst(in []*image.Process, children func(parent *image.Process) []int) []*image.Process {
	kids := map[int][]*image.Process{}
	known := map[int]*image.Process{}
	for _, p := range in {
		known[p.PID] = p
	}
	for _, p := range in {
		parent := p.Parent
		if known[parent] == nil {
			p.Parent, parent = 1, 1
		}
		kids[parent] = append(kids[parent], p)
	}
	out := make([]*image.Process, 0, len(in))
	var walk func(pid int)
	walk = func(pid int) {
		mine := kids[pid]
		if parent := known[pid]; parent != nil && len(mine) > 1 { // PID 1 waits for all alike
			inOrder(mine, children(parent))
		}
		for _, p := range mine {
			out = append(out, p)
			walk(p.PID)
		}
	}
	walk(1)
	return out
}

// inOrder sorts processes by where their numbers stand; those that do not stand
// there come last.
func inOrder(processes []*image.Process, numbers []int) {
	at := make(map[int]int, len(numbers))
	for i, n := range numbers {
		at[n] = i - len(numbers)
	}
	slices.SortStableFunc(processes, func(a, b *image.Process) int { return at[a.PID] - at[b.PID] })
}

// childrenOf lists the children of a process in the order in which wait(2) finds
// them: from the oldest on, of one thread after the other
// (/proc/PID/task/TID/children in proc_pid_task(5)). What it cannot read it
// leaves out: the order by numbers is right for all but those whose numbers went
// around.
func (l *Live) childrenOf(p *image.Process) (out []int) {
	for _, t := range p.Threads {
		fd, err := unix.Openat(l.cfg.Proc, fmt.Sprintf("%d/task/%d/children", p.PID, t.TID), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			continue // a kernel without it, or a thread that has ended
		}
		var text []byte
		for {
			n, err := unix.Read(fd, l.buf)
			if err != nil || n <= 0 {
				break
			}
			text = append(text, l.buf[:n]...)
		}
		_ = unix.Close(fd)
		for _, f := range bytes.Fields(text) {
			if n, err := number(f); err == nil {
				out = append(out, n)
			}
		}
	}
	return out
}
