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
// passing process that has the leader's number.
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
	// passing take the place of dead leaders of sessions whose processes have
	// been adopted by another process than PID 1, which clones them (see
	// PR_SET_CHILD_SUBREAPER in prctl(2)). They are no processes of the tree.
	passing []*image.Process
}

// how a process gets its session.
type how int

// Ways to get a session.
const (
	byParent  how = iota // it is its cloner's, or it leads it
	early                // it was its parent's, before that led one of its own
	bySibling            // its leader is a child of its parent's, too, and clones it
	byPassing            // its leader is dead, and one that passes clones it
	byNobody             // no call makes that
)

// wayOf tells how a process with a parent in the tree gets its session. byPID
// are the processes of the tree.
func wayOf(p *image.Process, byPID map[int]*image.Process) how {
	parent := byPID[p.Parent]
	if parent == nil || p.State == image.Zombie || p.Session == p.PID || p.Session == parent.Session {
		return byParent
	}
	leader := byPID[p.Session]
	switch {
	case leader == nil:
		return byPassing
	case leader.Parent == p.Parent: // also one that has ended, but was not waited for: it clones before it ends
		return bySibling
	case parent.Session == parent.PID && parent.Parent > 1 && byPID[parent.Parent] != nil && byPID[parent.Parent].Session == p.Session:
		return early
	}
	return byNobody
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
			l = &Lineage{Key: key, cloner: map[int]int{}, early: map[int]bool{}}
			lines[key] = l
		}
		return l
	}
	for _, p := range t.Processes {
		switch leader := byPID[p.Session]; {
		case p.Parent > 1 && wayOf(p, byPID) == bySibling:
			cloner[p.PID] = p.Session
			line(0).cloner[p.PID] = p.Session
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
		l.pass(byPID)
		l.sort(cloner)
		out = append(out, l)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Key < out[j].Key })
	return out
}

// pass notes who is cloned early, and who passes.
func (l *Lineage) pass(byPID map[int]*image.Process) {
	type key struct{ parent, session int }
	passing := map[key]bool{}
	for _, p := range l.Processes {
		if p.Parent <= 1 {
			continue
		}
		switch wayOf(p, byPID) {
		case early:
			l.early[p.PID] = true
		case byPassing:
			l.cloner[p.PID] = p.Session
			if k := (key{p.Parent, p.Session}); !passing[k] {
				passing[k] = true
				l.passing = append(l.passing, &image.Process{
					PID: p.Session, Parent: p.Parent, Group: p.Session, Session: p.Session, Terminal: -1,
					State: image.Running, ExitSignal: int(unix.SIGCHLD), Comm: "passing",
				})
			}
		}
	}
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
