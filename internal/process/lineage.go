package process

import (
	"sort"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

// Lineage is a part of a tree that restore makes from one clone of one zygote:
// a process that leads its session and everything that has to be cloned below
// it. Processes whose session has lost its leader and that PID 1 has adopted
// form one lineage together, since they can only get their session from one
// passing process that has the leader's number: it clones the first of them, and
// that one the others.
type Lineage struct {
	// Key is the number of the process at its top, or of the dead leader.
	Key int
	// Orphans is set if the leader is dead.
	Orphans bool
	// Processes stand cloners before what they clone.
	Processes []*image.Process
	// cloner is who clones a process, if not its parent or the one that passes:
	// its session's leader, or one that passes in a dead leader's place.
	cloner map[int]int
	// early are those that their parent clones before it leads a session of its
	// own: they are in the one that it came from.
	early map[int]bool
	// passing are no processes of the tree: they clone orphans, and end. Some take
	// the place of dead leaders of sessions whose processes have been adopted by
	// another process than PID 1, which clones them (see PR_SET_CHILD_SUBREAPER in
	// prctl(2)).
	passing []*passing
}

// passing is a process that clones orphans.
type passing struct {
	*image.Process
	// Reaper is the process of the tree that adopts what it has cloned when it ends:
	// 1 is PID 1. 0: they are that one's at once.
	Reaper int
}

// how a process gets its session.
type how int

// Ways to get a session.
const (
	byParent  how = iota // it is its cloner's, or it leads it
	early                // it was its parent's, before that led one of its own
	bySibling            // its leader is a child of its parent's, too, and clones it
	byOrphan             // its leader clones one that passes, which clones it and ends
	byPassing            // its leader is dead, and one that passes clones it
	byNobody             // no call makes that
)

// wayOf tells how a process gets its session. byPID are the processes of the tree.
func wayOf(p *image.Process, byPID map[int]*image.Process) how {
	parent, leader := byPID[p.Parent], byPID[p.Session]
	switch {
	case p.Session == p.PID || p.State == image.Zombie && parent != nil || parent != nil && p.Session == parent.Session:
		return byParent
	case leader == nil:
		return byPassing
	case leader.Parent == p.Parent || leader.Parent <= 1 && p.Parent <= 1: // also one that has ended, but was not waited for: it clones before it ends
		return bySibling
	case p.Parent <= 1 || descends(leader, p.Parent, byPID):
		return byOrphan
	case parent != nil && parent.Session == parent.PID && parent.Parent > 1 && byPID[parent.Parent] != nil && byPID[parent.Parent].Session == p.Session:
		return early
	}
	return byNobody
}

// descends reports whether a process is below another one.
func descends(p *image.Process, from int, byPID map[int]*image.Process) bool {
	for n := 0; p != nil && n <= len(byPID); n++ {
		if p.Parent == from {
			return true
		}
		p = byPID[p.Parent]
	}
	return false
}

// leaderless finds for the sessions without a leader whose processes another one
// than PID 1 has adopted where the process stands that passes as their leader: it
// is a child of the process that it tells. A session whose processes no such one
// could reach is in conflict.
func leaderless(processes []*image.Process, byPID map[int]*image.Process) (places map[int]int, conflict *image.Process) {
	for _, p := range processes {
		if p.Parent > 1 && wayOf(p, byPID) == byPassing {
			if places == nil {
				places = map[int]int{}
			}
			if at := places[p.Session]; at == 0 || descends(byPID[p.Parent], at, byPID) {
				places[p.Session] = p.Parent
			}
		}
	}
	for _, p := range processes {
		if at := places[p.Session]; p.Parent > 1 && at != 0 && at != p.Parent && wayOf(p, byPID) == byPassing && !descends(byPID[at], p.Parent, byPID) {
			return places, p
		}
	}
	return places, nil
}

// Lineages divides a tree. Its processes stand parents before children.
func Lineages(t *image.Tree) []*Lineage {
	byPID := map[int]*image.Process{}
	for _, p := range t.Processes {
		byPID[p.PID] = p
	}
	places, _ := leaderless(t.Processes, byPID) // conflicts are refused at the capture
	top := map[int]int{}                        // of each process, the key of its lineage
	cloner := map[int]int{}
	lines := map[int]*Lineage{}
	line := func(key int) *Lineage {
		l := lines[key]
		if l == nil {
			l = &Lineage{Key: key, cloner: map[int]int{}, early: map[int]bool{}}
			lines[key] = l
		}
		return l
	}
	for _, p := range t.Processes {
		way := wayOf(p, byPID)
		switch {
		case way == bySibling || way == byOrphan:
			cloner[p.PID] = p.Session
		case way == byPassing && places[p.Session] != 0:
			cloner[p.PID] = places[p.Session]
		case p.Parent > 1:
			cloner[p.PID] = p.Parent
		case p.Session == p.PID:
			top[p.PID] = p.PID
		default:
			top[p.PID] = p.Session
			line(p.Session).Orphans = true
		}
	}
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
	}
	out := make([]*Lineage, 0, len(lines))
	for _, l := range lines {
		out = append(out, l)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Key < out[j].Key })
	m := &middlemen{tree: t, byPID: byPID, places: places}
	for _, l := range out {
		m.find(l)
		l.gather(cloner)
		l.sort(cloner)
	}
	return out
}

// middlemen finds who clones a process that its parent does not.
type middlemen struct {
	tree   *image.Tree
	byPID  map[int]*image.Process
	places map[int]int
	count  int
}

func (m *middlemen) find(l *Lineage) {
	type key struct{ cloner, reaper int }
	var made map[key]*passing
	pass := func(k key, pid, session int) *passing {
		q := made[k]
		if q != nil {
			return q
		}
		if pid == 0 {
			pid = m.spare()
		}
		q = &passing{Reaper: k.reaper, Process: &image.Process{
			PID: pid, Parent: k.cloner, Group: session, Session: session, Terminal: -1, State: image.Running, Comm: "passing",
		}}
		if made == nil {
			made = map[key]*passing{}
		}
		made[k] = q
		l.passing = append(l.passing, q)
		return q
	}
	for _, p := range l.Processes {
		switch way := wayOf(p, m.byPID); {
		case way == early:
			l.early[p.PID] = true
		case way == bySibling:
			l.cloner[p.PID] = p.Session
		case way == byOrphan:
			l.cloner[p.PID] = pass(key{p.Session, max(p.Parent, 1)}, 0, p.Session).PID
		case way == byPassing && m.places[p.Session] != 0:
			leader := pass(key{cloner: m.places[p.Session], reaper: -p.Session}, p.Session, p.Session)
			leader.Reaper, leader.ExitSignal = 0, int(unix.SIGCHLD) // what it clones as its siblings gets the same
			l.cloner[p.PID] = p.Session
			if p.Parent != m.places[p.Session] {
				l.cloner[p.PID] = pass(key{p.Session, max(p.Parent, 1)}, 0, p.Session).PID
			}
		}
	}
}

// spare is the next number that nothing in the tree has.
func (m *middlemen) spare() int {
	m.count++
	return int(spareNumbers(m.tree, m.count)[m.count-1])
}

// gather has one orphan clone the others, as its siblings. If the passing process cloned
// them all, each would be cloned with the memory of all.
func (l *Lineage) gather(cloner map[int]int) {
	first := l.root()
	for _, p := range l.Processes {
		if p != first && l.clonerOf(p) == 0 {
			l.cloner[p.PID], cloner[p.PID] = first.PID, first.PID
		}
	}
}

// root is the process that the passing process clones.
func (l *Lineage) root() *image.Process {
	for _, p := range l.Processes {
		if l.clonerOf(p) == 0 {
			return p
		}
	}
	return nil
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
