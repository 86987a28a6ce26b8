package process

import (
	"sort"

	"github.com/sandtree/sandtree/internal/process/image"
)

// Lineage is a part of a tree that restore makes from one clone of one zygote:
// a process that leads its session and everything that has to be cloned below
// it. Processes whose session has lost its leader and that PID 1 has adopted
// form one lineage together, since they can only get their session from one
// passing process that has the leader's number.
type Lineage struct {
	// Key is the number of the process at its top, or of the dead leader.
	Key int
	// Orphans is set if the leader is dead.
	Orphans bool
	// Processes stand cloners before what they clone.
	Processes []*image.Process
	// cloner is who clones a process that PID 1 has adopted, if not the one
	// that passes: its session's leader.
	cloner map[int]int
}

// Lineages divides a tree. Its processes stand parents before children.
func Lineages(t *image.Tree) []*Lineage {
	byPID := map[int]*image.Process{}
	for _, p := range t.Processes {
		byPID[p.PID] = p
	}
	top := map[int]int{} // of each process, the key of its lineage
	cloner := map[int]int{}
	lines := map[int]*Lineage{}
	line := func(key int) *Lineage {
		l := lines[key]
		if l == nil {
			l = &Lineage{Key: key, cloner: map[int]int{}}
			lines[key] = l
		}
		return l
	}
	for _, p := range t.Processes {
		switch leader := byPID[p.Session]; {
		case p.Parent > 1:
			cloner[p.PID] = p.Parent
		case p.Session == p.PID:
			top[p.PID] = p.PID
		case leader != nil: // one that is a zombie clones them before it ends
			cloner[p.PID] = p.Session
			line(0).cloner[p.PID] = p.Session // moved to its lineage below
		default:
			top[p.PID] = p.Session
			line(p.Session).Orphans = true
		}
	}
	adopted := lines[0]
	delete(lines, 0)
	var find func(pid, depth int) int
	find = func(pid, depth int) int {
		if k, ok := top[pid]; ok {
			return k
		}
		if depth > len(t.Processes) { // cloners in a circle cannot be
			return pid
		}
		k := find(cloner[pid], depth+1)
		top[pid] = k
		return k
	}
	for _, p := range t.Processes {
		l := line(find(p.PID, 0))
		l.Processes = append(l.Processes, p)
		if adopted != nil {
			if c, ok := adopted.cloner[p.PID]; ok {
				l.cloner[p.PID] = c
			}
		}
	}
	out := make([]*Lineage, 0, len(lines))
	for _, l := range lines {
		l.sort(cloner)
		out = append(out, l)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Key < out[j].Key })
	return out
}

// sort puts cloners first.
func (l *Lineage) sort(cloner map[int]int) {
	done := map[int]bool{}
	out := make([]*image.Process, 0, len(l.Processes))
	for len(out) < len(l.Processes) {
		before := len(out)
		for _, p := range l.Processes {
			c, cloned := cloner[p.PID]
			if !done[p.PID] && (!cloned || done[c]) {
				done[p.PID] = true
				out = append(out, p)
			}
		}
		if len(out) == before {
			break
		}
	}
	l.Processes = out
}

// clonerOf is who clones a process in this lineage; 0: the one that passes.
func (l *Lineage) clonerOf(p *image.Process) int {
	if c, ok := l.cloner[p.PID]; ok {
		return c
	}
	if p.Parent > 1 {
		return p.Parent
	}
	return 0
}
