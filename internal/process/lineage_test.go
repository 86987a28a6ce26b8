package process

import (
	"slices"
	"testing"

	"github.com/sandtree/sandtree/internal/process/image"
)

func node(pid, parent, session int) *image.Process {
	return &image.Process{PID: pid, Parent: parent, Group: pid, Session: session, State: image.Running}
}

// Every process is cloned by one that is there before it, or passes, and gets the
// parent it had.
func TestLineagesOfOrphans(t *testing.T) {
	tests := map[string][]*image.Process{
		"a terminal multiplexer":         {node(2, 1, 2), node(3, 2, 3), node(4, 1, 3), node(5, 1, 3)},
		"below two leaders":              {node(2, 1, 2), node(3, 2, 3), node(4, 3, 4), node(5, 1, 4), node(6, 1, 3)},
		"adopted from below a leader":    {node(2, 1, 2), node(3, 2, 3), node(4, 3, 4), node(5, 2, 4), node(6, 3, 4), node(7, 1, 4)},
		"an orphan that leads":           {node(2, 1, 2), node(3, 2, 3), node(4, 1, 3), node(5, 4, 5), node(6, 1, 5), node(7, 4, 5)},
		"a dead leader, several adopt":   {node(2, 1, 2), node(3, 2, 3), node(4, 3, 9), node(5, 2, 9), node(6, 1, 9), node(7, 6, 9)},
		"a dead leader, PID 1 adopts":    {node(2, 1, 9), node(3, 1, 9), node(4, 3, 4), node(5, 1, 4)},
		"a leader that is PID 1's child": {node(2, 1, 2), node(3, 1, 2), node(4, 3, 2), node(5, 1, 2)},
	}
	for name, processes := range tests {
		t.Run(name, func(t *testing.T) { tryLineages(t, processes) })
	}
}

func tryLineages(t *testing.T, processes []*image.Process) {
	t.Helper()
	byPID := map[int]*image.Process{}
	for _, p := range processes {
		byPID[p.PID] = p
	}
	for _, p := range processes {
		if w := wayOf(p, byPID); w == byNobody {
			t.Errorf("process %d is refused", p.PID)
		}
	}
	if _, p := leaderless(processes, byPID); p != nil {
		t.Errorf("process %d is refused", p.PID)
	}
	made := 0
	tree := &image.Tree{Processes: processes}
	for _, l := range Lineages(tree) {
		session := map[int]int{} // of all that clone
		parent := map[int]int{}
		reaper := map[int]int{} // of those that pass
		if l.Orphans {
			session[0] = l.Key
		}
		for _, q := range l.passing {
			session[q.PID], parent[q.PID], reaper[q.PID] = q.Session, q.Parent, q.Reaper
			if byPID[q.PID] != nil {
				t.Errorf("what passes has the number of process %d", q.PID)
			}
		}
		for _, p := range l.Processes {
			made++
			c := l.clonerOf(p)
			s, known := session[c]
			if c != 0 && !known {
				t.Fatalf("process %d stands before process %d, which clones it", p.PID, c)
			}
			if c != 0 || l.Orphans {
				if p.Session != p.PID && p.Session != s {
					t.Errorf("process %d is cloned in session %d", p.PID, s)
				}
			}
			is := c
			switch r, passes := reaper[c]; {
			case passes && r != 0:
				is = r
			case c != p.Parent && parent[c] == p.Parent: // CLONE_PARENT
				is = p.Parent
			}
			if max(is, 1) != p.Parent {
				t.Errorf("process %d becomes a child of %d, not %d", p.PID, is, p.Parent)
			}
			session[p.PID], parent[p.PID] = p.Session, p.Parent
		}
	}
	if made != len(processes) {
		t.Errorf("%d of %d processes are made", made, len(processes))
	}
}

func TestLineagesThatCannotBe(t *testing.T) {
	// Two that adopted, none above the other, from one session without a leader.
	processes := []*image.Process{node(2, 1, 2), node(3, 2, 3), node(4, 2, 4), node(5, 3, 9), node(6, 4, 9)}
	byPID := map[int]*image.Process{}
	for _, p := range processes {
		byPID[p.PID] = p
	}
	if _, p := leaderless(processes, byPID); p == nil {
		t.Error("not refused")
	}
}

func TestSiblingsInOrder(t *testing.T) {
	in := []*image.Process{node(2, 1, 2), node(3, 2, 2), node(4, 2, 2), node(5, 4, 2), node(6, 2, 2)}
	var got []int
	for _, p := range parentsFirst(in, func(*image.Process) []int { return []int{6, 3, 7} }) {
		got = append(got, p.PID)
	}
	if !slices.Equal(got, []int{2, 6, 3, 4, 5}) {
		t.Errorf("order %v", got)
	}
}
