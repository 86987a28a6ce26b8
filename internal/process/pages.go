package process

import (
	"sync"

	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/process/memory"
)

// scan finds the pages that changed, of one process after another. Threads may take turns
// at it beside each other.
type scan struct {
	trackers []*memory.Tracker
	deltas   []*memory.Delta
	all      chan struct{} // closed when all are found, or one has failed

	mu    sync.Mutex
	next  int
	under int // are being looked at
	err   error
}

func (l *Live) newScan() *scan {
	s := &scan{all: make(chan struct{}), deltas: make([]*memory.Delta, len(l.order))}
	for _, p := range l.order {
		s.trackers = append(s.trackers, p.memory)
	}
	if len(s.trackers) == 0 {
		close(s.all)
	}
	return s
}

// take returns the next process, if there is one, once the one before it is done.
func (s *scan) take(before bool, err error) (i int, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil && err != nil {
		s.err = err
	}
	if before {
		s.under--
	}
	if s.next < len(s.trackers) && s.err == nil {
		s.next++
		s.under++
		return s.next - 1, true
	}
	if before && s.under == 0 {
		close(s.all)
	}
	return 0, false
}

// run looks at processes until all are taken. The scratch memory is the thread's.
func (s *scan) run(scratch *memory.Scratch) {
	i, ok := s.take(false, nil)
	for ok {
		d := &memory.Delta{}
		s.trackers[i].UseScratch(scratch)
		err := s.trackers[i].Scan(d)
		d.VMAs = append([]image.VMA(nil), d.VMAs...) // the tracker's own change at the next stop
		s.deltas[i] = d
		i, ok = s.take(true, err)
	}
}

// wait waits until all are found.
func (s *scan) wait() error {
	<-s.all
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// readPages finds and copies the pages that changed. It runs beside the
// questions that the processes are asked, which need no memory of theirs: the
// area is in no mapping that the trackers know. Of all processes the pages are found
// first: what they share must be known before copying parts it.
func (l *Live) readPages(c *Capture, arena *memory.Arena, s *scan) error {
	s.run(l.cfg.Scratch)
	if err := s.wait(); err != nil {
		return err
	}
	born := false
	for i, p := range l.order {
		p.memory.UseScratch(l.cfg.Scratch)
		c.Deltas[p.pid] = s.deltas[i]
		born = born || s.deltas[i].Full
	}
	if err := l.findShared(c); err != nil {
		return err
	}
	for _, p := range l.order {
		d := c.Deltas[p.pid]
		d.Forked = born
		if err := p.memory.Copy(d, arena); err != nil {
			return err
		}
	}
	return nil
}

// readMappings puts the mappings into the image, behind readPages, and keeps the
// files of those that need it.
func (l *Live) readMappings(c *Capture) error {
	for _, p := range l.order {
		d := c.Deltas[p.pid]
		if err := l.keepBackings(c, p, d); err != nil {
			return err
		}
		p.image.Memory.VMAs, p.image.Memory.MM = d.VMAs, p.stat.mm
	}
	return nil
}

// findShared finds the pages that processes of one lineage share.
func (l *Live) findShared(c *Capture) error {
	trackers := make(map[int]*memory.Tracker, len(l.order))
	for _, p := range l.order {
		trackers[p.pid] = p.memory
	}
	for _, line := range c.Lineages {
		for i, p := range line.Processes {
			t := trackers[p.PID]
			if t == nil {
				continue
			}
			var lenders []*memory.Tracker
			for _, pid := range line.relatives(i) {
				if q := trackers[pid]; q != nil {
					lenders = append(lenders, q)
				}
			}
			if err := t.Borrow(c.Deltas[p.PID], lenders); err != nil {
				return err
			}
		}
	}
	return nil
}

// generations is how many ancestors a process is compared with.
const generations = 3

// relatives are the processes of a lineage that its i-th most likely shares
// pages with, all of them before it: its ancestors or else the one at the top, and
// of siblings the first and the one before it. So children of a parent that has
// ended share as well.
func (l *Lineage) relatives(i int) (out []int) {
	at := make(map[int]int, i)
	first, last := -1, -1
	for k, q := range l.Processes[:i] {
		at[q.PID] = k
		if q.Parent == l.Processes[i].Parent {
			if last = k; first < 0 {
				first = k
			}
		}
	}
	parent := l.Processes[i].Parent
	for range generations {
		k, ok := at[parent]
		if !ok {
			break
		}
		out = append(out, parent)
		parent = l.Processes[k].Parent
	}
	if len(out) == 0 && i > 0 && first != 0 {
		out = append(out, l.Processes[0].PID)
	}
	if first >= 0 {
		out = append(out, l.Processes[first].PID)
	}
	if last > first {
		out = append(out, l.Processes[last].PID)
	}
	return out
}
