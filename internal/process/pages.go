package process

import (
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/process/memory"
)

// readPages finds and copies the pages that changed. It runs beside the
// questions that the processes are asked, which need no memory of theirs: the
// area is in no mapping that the trackers know. Of all processes the pages are found
// first: what they share must be known before copying parts it.
func (l *Live) readPages(c *Capture, arena *memory.Arena) error {
	born := false
	for _, p := range l.order {
		d := &memory.Delta{}
		if err := p.memory.Scan(d); err != nil {
			return err
		}
		d.VMAs = append([]image.VMA(nil), d.VMAs...) // the tracker's own change at the next stop
		c.Deltas[p.pid] = d
		born = born || d.Full
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
		p.image.Memory = image.Memory{VMAs: d.VMAs, MM: p.stat.mm}
		aux, err := l.read(p, "auxv")
		if err != nil {
			return err
		}
		p.image.Memory.Auxv = append([]byte(nil), aux...)
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
