package process

import (
	"math"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// A clone looks at each mapping of its caller's, also at those that it is not to get: with
// the memory of 128 children in it one took 13 ms, with that of one 0.3. So a process of
// many children clones one of some with the memory of all of these, and that one, their
// deputy, clones the others, as children of its parent's (CLONE_PARENT). The number of
// mappings that are looked at grows so with the power of 1.5 of the children's, not of 2.

// manyChildren is from how many children on some are cloned by deputies.
const manyChildren = 24

// together is how many of the children that are to come next are cloned by the first of
// them, itself included, out of so many in all.
func (c *cloning) together(next []*image.Process, all int, early map[int]bool) int {
	if all < manyChildren || next[0].State == image.Zombie {
		return 1
	}
	k := 0
	for most := int(math.Sqrt(float64(all))); k < min(most, len(next)); k++ {
		p := next[k]
		passes := slices.ContainsFunc(c.n.line.passing, func(q *passing) bool { return q.PID == p.PID })
		// A child of the parent's has the exit signal of its cloner.
		if passes || p.Parent != c.n.image.PID || exitSignal(p) != uint64(unix.SIGCHLD) || early[p.PID] != early[next[0].PID] {
			break
		}
	}
	return max(k, 1)
}

// children queues the clone of one child, or has it cloned, and it the others. Needs are
// whose memory each needs with those below it.
func (c *cloning) children(ps []*image.Process, needs [][]int) error {
	if len(ps) == 1 {
		return c.child(ps[0], needs[0])
	}
	var all []int
	users := map[int]int{}
	for _, pids := range needs {
		for _, pid := range pids {
			if users[pid]++; users[pid] == 1 {
				all = append(all, pid)
			} else {
				c.users[pid]-- // they count as one here
			}
		}
	}
	if err := c.child(ps[0], all); err != nil {
		return err
	}
	if err := c.run(); err != nil {
		return err
	}
	d := &cloning{restore: c.restore, n: c.procs[ps[0].PID], zygote: c.zygote, batch: tracee.NewBatch(), users: users}
	if err := d.shareAll(false); err != nil {
		return err
	}
	for i, p := range ps[1:] {
		if err := d.child(p, needs[i+1]); err != nil {
			return err
		}
	}
	if err := d.shareAll(true); err != nil {
		return err
	}
	return d.run()
}
