package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// realtime is what a parent has lent of its real-time budget.
type realtime struct {
	mu   sync.Mutex
	lent time.Duration
}

// RealtimeBudget is what [Group.AllowRealtime] is usually asked for: much more
// than a checkpoint or restore needs. A group that has used up its budget
// stands still for the rest of the second, all of its real-time tasks with
// it: with 2 ms granted, 5 ms of work took 1.9 to 2.9 s.
const RealtimeBudget = 100 * time.Millisecond

// AllowRealtime lets tasks of the group be SCHED_FIFO or SCHED_RR for budget
// in each second, until revoke is called, after the last of them has gone
// back to an ordinary policy. Taking and giving back cost some 30 µs each:
// borrow for one checkpoint, as all groups of the machine together have 950
// ms.
//
// Kernels with CONFIG_RT_GROUP_SCHED refuse such tasks in a group of the v1
// cpu controller that has no budget (sched_setscheduler: EPERM; a move:
// EINVAL). On v2, and for a group without a limit on CPU time, nothing need
// be done, and nothing is. [fault.Exhausted] means that others have it all:
// go on without.
func (g *Group) AllowRealtime(budget time.Duration) (revoke func() error, err error) {
	none := func() error { return nil }
	dir, version := g.dirOf(CPU)
	if version != 1 {
		return none, nil
	}
	file := filepath.Join(dir, "cpu.rt_runtime_us")
	if _, err := os.Stat(file); err != nil {
		return none, nil // without CONFIG_RT_GROUP_SCHED
	}
	if err := g.parent.lend(budget); err != nil {
		return nil, err
	}
	if err := setRealtime(file, budget); err != nil {
		_ = g.parent.lend(-budget)
		return nil, err
	}
	var once sync.Once
	return func() (err error) {
		once.Do(func() {
			if err = setRealtime(file, 0); gone(err) {
				err = nil // removed with its budget
			}
			if err == nil {
				err = g.parent.lend(-budget)
			}
		})
		return err
	}, nil
}

// lend sets the parent's own budget to what its groups hold: the kernel wants
// a group's budget within its parent's.
func (p *Parent) lend(more time.Duration) error {
	p.realtime.mu.Lock()
	defer p.realtime.mu.Unlock()
	dir := p.dir(p.layout.v1[slices.IndexFunc(p.layout.v1, func(h hierarchy) bool { return slices.Contains(h.controllers, CPU) })])
	if filepath.Dir(p.rel) == "." {
		// The top of a daemon has a fixed share, as several processes lend
		// from it.
		if err := p.claim(filepath.Join(dir, "cpu.rt_runtime_us")); err != nil {
			return err
		}
		p.realtime.lent += more
		return nil
	}
	if p.up != nil {
		if err := p.up.lend(0); err != nil {
			return err
		}
	}
	if more == 0 {
		return nil
	}
	if err := setRealtime(filepath.Join(dir, "cpu.rt_runtime_us"), p.realtime.lent+more); err != nil {
		return err
	}
	p.realtime.lent += more
	return nil
}

// claim gives a daemon's top directory as much of the machine's budget as
// there is, once.
func (p *Parent) claim(file string) error {
	if now, err := readUint(file); err == nil && now > 0 {
		return nil
	}
	var err error
	for share := 800 * time.Millisecond; share >= RealtimeBudget; share /= 2 {
		if err = setRealtime(file, share); !fault.Is(err, fault.Exhausted) {
			return err
		}
	}
	return err
}

func setRealtime(file string, budget time.Duration) error {
	err := write(file, strconv.FormatInt(budget.Microseconds(), 10))
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EINVAL):
		return fault.New(fault.Exhausted, "no real-time budget is left: %w", err)
	case errors.Is(err, unix.EBUSY):
		return fault.New(fault.Conflict, "take back real-time budget: a task of the group is still real-time: %w", err)
	}
	return fault.New(fault.Internal, "set real-time budget: %w", err)
}
