package memory

import (
	"fmt"
	"sort"

	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// A zygote holds the address spaces of several processes in its one. One of
// them stands where it belongs; the parts of the others are parked elsewhere,
// moved by whole gigabytes, so that moving them back moves page tables and not
// pages.
const (
	window = 1 << 30

	parkLow  = 0x2100_0000_0000
	parkHigh = 0x7000_0000_0000
	vdsoPark = 0x1f00_0000_0000 // the zygote's own [vdso] and its like
)

// extent is a part of a process's address space, whole windows, and where it
// stands in the zygote.
type extent struct {
	start, end uint64 // in the process
	at         uint64 // of start, in the zygote
}

func (e extent) parkEnd() uint64 { return e.at + e.end - e.start }

// layout says where the parts of all processes stand.
type layout struct {
	inPlace int // pid of the process that stands where it belongs; 0: none yet
	extents map[int][]extent
}

func newLayout() *layout { return &layout{extents: map[int][]extent{}} }

func (l *layout) clone() *layout {
	c := &layout{inPlace: l.inPlace, extents: make(map[int][]extent, len(l.extents))}
	for pid, es := range l.extents {
		c.extents[pid] = append([]extent(nil), es...)
	}
	return c
}

// park returns where an address of a process stands in the zygote.
func (l *layout) park(pid int, addr uint64) uint64 {
	es := l.extents[pid]
	i := sort.Search(len(es), func(i int) bool { return es[i].end > addr })
	if i == len(es) || es[i].start > addr {
		panic(fmt.Sprintf("address %#x of process %d has no place in the zygote", addr, pid))
	}
	return es[i].at + addr - es[i].start
}

// needed are the windows that a process's mappings lie in, as runs.
func needed(vmas []image.VMA) (out []extent) {
	for i := range vmas {
		v := &vmas[i]
		if v.Kind == image.VDSO {
			continue
		}
		s, e := v.Start&^(window-1), (v.End+window-1)&^(window-1)
		if n := len(out); n > 0 && s <= out[n-1].end {
			out[n-1].end = max(out[n-1].end, e)
		} else {
			out = append(out, extent{start: s, end: e})
		}
	}
	return out
}

// move is a part of a process that changes its place in the zygote.
type move struct {
	pid int
	old extent
	new extent
}

// fit makes room for a process's mappings, and returns what has to move for it.
//
// A parked part stands in none of the windows of its own process: what is moved back there first would
// replace it. One process that maps something near what is the zygote's own is always parked.
func (l *layout) fit(pid int, vmas []image.VMA) ([]move, error) {
	want := needed(vmas)
	near := overlapsNatural(want, tracee.StubStart&^(window-1), tracee.StubEnd) || overlapsNatural(want, vdsoPark, vdsoPark+window)
	switch {
	case near && l.inPlace == pid:
		l.inPlace = 0
	case !near && l.inPlace == 0 && l.extents[pid] == nil:
		l.inPlace = pid // one that is parked already stays where it is
	}
	if pid == l.inPlace {
		for i := range want {
			want[i].at = want[i].start
		}
		l.extents[pid] = want
		return l.evict(pid)
	}
	old := l.extents[pid]
	l.extents[pid] = nil
	var moves []move
	for i := range want {
		w := &want[i]
		if o := holds(old, *w); o != nil && !overlapsNatural(want, o.at, o.parkEnd()) { // keeps its place, with the room it had
			*w = *o
			continue
		}
		at, err := l.free(w.end-w.start, pid, want[:i], old, want)
		if err != nil {
			return nil, err
		}
		w.at = at
		for _, o := range old {
			if o.start < w.end && o.end > w.start {
				moves = append(moves, move{pid, o, *w})
			}
		}
	}
	l.extents[pid] = merge(want)
	return moves, nil
}

// merge drops extents that one of the others holds: two runs of windows may
// have kept one old place.
func merge(es []extent) (out []extent) {
	for _, e := range es {
		if n := len(out); n > 0 && out[n-1] == e {
			continue
		}
		out = append(out, e)
	}
	return out
}

func holds(es []extent, w extent) *extent {
	for i := range es {
		if es[i].start <= w.start && es[i].end >= w.end {
			return &es[i]
		}
	}
	return nil
}

// evict moves parked parts away from where the process in place has grown.
func (l *layout) evict(inPlace int) ([]move, error) {
	var moves []move
	for pid, es := range l.extents {
		if pid == inPlace {
			continue
		}
		for i := range es {
			if !overlaps(l.extents[inPlace], es[i].at, es[i].parkEnd()) {
				continue
			}
			at, err := l.free(es[i].end-es[i].start, 0, nil, nil, es)
			if err != nil {
				return nil, err
			}
			old := es[i]
			es[i].at = at
			moves = append(moves, move{pid, old, es[i]})
		}
	}
	return moves, nil
}

func overlaps(es []extent, start, end uint64) bool {
	for _, e := range es {
		if e.at < end && e.parkEnd() > start {
			return true
		}
	}
	return false
}

// overlapsNatural reports whether some of a process's windows overlap a range.
func overlapsNatural(es []extent, start, end uint64) bool {
	for _, e := range es {
		if e.start < end && e.end > start {
			return true
		}
	}
	return false
}

// free finds room for size bytes that is nobody's: not of the extents settled
// so far, nor of new and old ones of the process that is being fitted, nor where its
// windows belong.
func (l *layout) free(size uint64, pid int, settled, old, natural []extent) (uint64, error) {
	taken := append(append([]extent(nil), settled...), old...)
	for _, e := range natural {
		taken = append(taken, extent{start: e.start, end: e.end, at: e.start})
	}
	for p, es := range l.extents {
		if p != pid {
			taken = append(taken, es...)
		}
	}
	sort.Slice(taken, func(i, j int) bool { return taken[i].at < taken[j].at })
	at := uint64(parkLow)
	for _, e := range taken {
		if e.at >= at+size {
			break
		}
		at = max(at, e.parkEnd())
	}
	if at+size > parkHigh {
		return 0, fmt.Errorf("the processes' address spaces do not fit into one (%d GiB more)", size>>30)
	}
	return at, nil
}
