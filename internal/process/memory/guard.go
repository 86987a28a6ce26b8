package memory

import (
	"slices"

	"golang.org/x/sys/unix"
)

// Advice of madvise(2) for guard pages (Linux 6.13): touching one ends the
// process. C libraries make the ends of their threads' stacks of them.
const (
	madvGuardInstall = 102
	madvGuardRemove  = 103
)

// guards are the runs of guard pages that a zygote has of a process, at the
// process's addresses. Some may be gone with their mapping.
type guards []span

// meet calls f for the parts of the runs that lie in a range, and forgets them.
func (g guards) meet(start, end uint64, f func(start, end uint64) error) (guards, error) {
	var out guards
	for _, s := range g {
		lo, hi := max(s.start, start), min(s.end, end)
		if lo >= hi {
			out = append(out, s)
			continue
		}
		if err := f(lo, hi); err != nil {
			return g, err
		}
		if s.start < lo {
			out = append(out, span{s.start, lo})
		}
		if hi < s.end {
			out = append(out, span{hi, s.end})
		}
	}
	return out, nil
}

// any reports whether one of the runs lies in a range.
func (g guards) any(in span) bool {
	return slices.ContainsFunc(g, func(s span) bool { return s.start < in.end && s.end > in.start })
}

// guard prepares a part of a run, at to in the zygote, for what it has become: a
// guard, or anything else where a guard may stand.
func (u *update) guard(pid int, r *Run, start, end, to uint64) error {
	z := u.z
	if len(z.guards[pid]) > 0 {
		left, err := z.guards[pid].meet(start, end, func(s, e uint64) error {
			return u.call(unix.SYS_MADVISE, to+s-start, e-s, madvGuardRemove)
		})
		if err != nil {
			return err
		}
		z.setGuards(pid, left)
	}
	if !r.Guard {
		return nil
	}
	z.setGuards(pid, append(z.guards[pid][:len(z.guards[pid]):len(z.guards[pid])], span{start, end}))
	return u.call(unix.SYS_MADVISE, to, end-start, madvGuardInstall)
}

func (z *Zygote) setGuards(pid int, g guards) {
	if z.guards == nil {
		z.guards = map[int]guards{}
	}
	if z.guards[pid] = g; len(g) == 0 {
		delete(z.guards, pid)
	}
}
