package memory

import (
	"fmt"
	"slices"
	"sort"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/pagemap"
	"github.com/sandtree/sandtree/internal/process/image"
)

// A zygote cannot have one page at two places: nothing but fork makes a page
// stand twice. So what processes share stands in the window of one of them, the
// lender, and the others' windows have nothing there. At restore a borrower is
// cloned with the lender's window too, makes the lender's mapping its own, and
// lays its own pages over it.

// loan is a range of addresses whose pages a process has from a lender's window.
type loan struct {
	span
	lender int
}

// borrowed is a mapping that has pages from a lender.
type borrowed struct {
	span
	lender int
	own    spans // pages that the process has itself, to be laid over the lender's
	drop   spans // pages that only the lender has
}

// extentOf are the ranges of some loans of one lender.
func extentOf(ls []loan, lender int) spans {
	var out []span
	for _, l := range ls {
		if l.lender == lender {
			out = append(out, l.span)
		}
	}
	return makeSpans(out)
}

// within are the parts of loans that lie in a range.
func within(ls []loan, s span) (out []loan) {
	i := sort.Search(len(ls), func(i int) bool { return ls[i].end > s.start })
	for ; i < len(ls) && ls[i].start < s.end; i++ {
		out = append(out, loan{span{max(ls[i].start, s.start), min(ls[i].end, s.end)}, ls[i].lender})
	}
	return out
}

func sortLoans(ls []loan) {
	sort.Slice(ls, func(i, j int) bool { return ls[i].start < ls[j].start })
}

// Lenders are the processes whose windows a process has pages in.
func (z *Zygote) Lenders(pid int) (out []int) {
	for _, b := range z.borrowed[pid] {
		if !slices.Contains(out, b.lender) {
			out = append(out, b.lender)
		}
	}
	return out
}

// settle ends the loans that this update cannot keep: what the borrower has
// changed is its own now, and what the lender changes is copied first. It works
// on the windows as they are before the update.
func (u *update) settle(deltas []*Delta) error {
	z := u.z
	if len(z.loans) == 0 {
		return nil
	}
	byPID := map[int]*Delta{}
	for _, d := range deltas {
		byPID[d.PID] = d
	}
	gone := memo(func(pid int) spans { return z.gone(pid, byPID[pid]) })
	changed := memo(func(pid int) spans { return changed(gone(pid), byPID[pid]) })
	if err := u.inherit(gone); err != nil {
		return err
	}
	for pid, ls := range z.loans {
		mine := changed(pid)
		keep := make([]loan, 0, len(ls))
		for _, l := range ls {
			rest := spans{l.span}.less(mine)
			for _, s := range rest.and(changed(l.lender)) {
				if err := u.materialize(pid, loan{s, l.lender}); err != nil {
					return err
				}
			}
			for _, s := range rest.less(changed(l.lender)) {
				keep = append(keep, loan{s, l.lender})
			}
		}
		z.setLoans(pid, keep)
	}
	return nil
}

func (z *Zygote) setLoans(pid int, ls []loan) {
	if len(ls) == 0 {
		delete(z.loans, pid)
		return
	}
	z.loans[pid] = ls
}

// memo is a function that is asked once for each process.
func memo(f func(pid int) spans) func(pid int) spans {
	known := map[int]spans{}
	return func(pid int) spans {
		c, ok := known[pid]
		if !ok {
			c = f(pid)
			known[pid] = c
		}
		return c
	}
}

// gone is what an update leaves nothing of in a process's window; d is nil if
// the process leaves.
func (z *Zygote) gone(pid int, d *Delta) spans {
	if d == nil || d.Full {
		return spans{{0, ^uint64(0)}}
	}
	var out []span
	old := z.vmas[pid]
	for i := range old {
		out = append(out, gaps(&old[i], d.VMAs)...)
	}
	return makeSpans(out)
}

// changed is what will not be after an update what it was before.
func changed(gone spans, d *Delta) spans {
	if d == nil || d.Full {
		return gone
	}
	out := slices.Clone(gone)
	for _, r := range d.Runs {
		out = append(out, span{r.Start, r.End})
	}
	return makeSpans(out)
}

// materialize copies pages from a lender's window to the borrower's.
func (u *update) materialize(pid int, l loan) error {
	if err := u.openMemory(); err != nil {
		return err
	}
	buf := make([]byte, min(l.end-l.start, 64*pageSize))
	for at := l.start; at < l.end; {
		b := buf[:min(uint64(len(buf)), l.end-at)]
		n, err := unix.Pread(u.mem, b, int64(u.z.layout.park(l.lender, at)))
		if n == len(b) {
			n, err = unix.Pwrite(u.mem, b, int64(u.z.layout.park(pid, at)))
		}
		if n != len(b) {
			return fmt.Errorf("copy %#x-%#x from process %d to %d: %d bytes: %w", at, l.end, l.lender, pid, n, err)
		}
		at += uint64(n)
	}
	return nil
}

// openMemory opens the zygote's memory, and keeps single pages that are stored
// in windows from filling huge ones.
func (u *update) openMemory() (err error) {
	if u.mem >= 0 {
		return nil
	}
	if err := u.hugePages(false); err != nil {
		return err
	}
	path := fmt.Sprintf("/proc/%d/mem", u.z.server.PID())
	if u.mem, err = unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	return nil
}

func (u *update) closeMemory() error {
	if u.mem < 0 {
		return nil
	}
	_ = unix.Close(u.mem)
	u.mem = -1
	return u.hugePages(true)
}

// hugePages tells whether first writes may fill huge pages (prctl(2)).
func (u *update) hugePages(yes bool) error {
	off := 1
	if yes {
		off = 0
	}
	u.batch.Call(unix.SYS_PRCTL, unix.PR_SET_THP_DISABLE, off, 0, 0, 0)
	return u.flush()
}

// lend notes the loans that the deltas found. Whose page is itself lent gets it
// from where it stands.
func (u *update) lend(deltas []*Delta) {
	z := u.z
	for _, d := range deltas {
		var ls []loan
		for _, r := range d.Runs {
			if r.From != 0 {
				ls = append(ls, loan{span{r.Start, r.End}, r.From})
			}
		}
		if len(ls) > 0 {
			ls = append(ls, z.loans[d.PID]...)
			sortLoans(ls)
			z.loans[d.PID] = ls
		}
	}
	for pid, ls := range z.loans {
		var out []loan
		for _, l := range ls {
			out = z.resolve(out, l, len(z.loans))
		}
		z.loans[pid] = out
	}
}

// resolve appends the parts of a loan with those who have the pages.
func (z *Zygote) resolve(out []loan, l loan, depth int) []loan {
	theirs := within(z.loans[l.lender], l.span)
	if len(theirs) == 0 || depth == 0 {
		return append(out, l)
	}
	at := l.start
	for _, t := range theirs {
		if t.start > at {
			out = append(out, loan{span{at, t.start}, l.lender})
		}
		out = z.resolve(out, t, depth-1)
		at = t.end
	}
	if at < l.end {
		out = append(out, loan{span{at, l.end}, l.lender})
	}
	return out
}

// arrange finds how each mapping that has loans is put together, and ends the
// loans of those that are not worth it, or cannot be any more.
func (u *update) arrange() error {
	z := u.z
	z.borrowed = map[int][]borrowed{}
	if len(z.loans) == 0 {
		return nil
	}
	path := fmt.Sprintf("/proc/%d/pagemap", z.server.PID())
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer unix.Close(fd)
	for pid, ls := range z.loans {
		var keep []loan
		vmas := z.vmas[pid]
		for i := range vmas {
			v := &vmas[i]
			part := within(ls, span{v.Start, v.End})
			if len(part) == 0 {
				continue
			}
			b, err := u.arrangeMapping(fd, pid, v, part)
			if err != nil {
				return err
			}
			for _, l := range part {
				if b != nil && l.lender == b.lender {
					keep = append(keep, l)
				}
			}
			if b != nil {
				z.borrowed[pid] = append(z.borrowed[pid], *b)
			}
		}
		z.setLoans(pid, keep)
	}
	return nil
}

// arrangeMapping does so for one mapping; nil: it is all its process's own now.
func (u *update) arrangeMapping(fd, pid int, v *image.VMA, ls []loan) (*borrowed, error) {
	z := u.z
	by := map[int]uint64{}
	b := &borrowed{span: span{v.Start, v.End}}
	for _, l := range ls {
		if by[l.lender] += l.end - l.start; by[l.lender] > by[b.lender] {
			b.lender = l.lender
		}
	}
	lv := Find(z.vmas[b.lender], v.Start)
	keep := pid != z.layout.inPlace && lv != nil && covers(lv, v) &&
		// Guards would come with the lender's mapping, and not with the pages.
		!z.guards[pid].any(b.span) && !z.guards[b.lender].any(b.span)
	shared := extentOf(ls, b.lender)
	if keep {
		own, err := z.pages(fd, pid, v)
		if err != nil {
			return nil, err
		}
		b.own = own.less(shared)
		keep = shared.size() >= max(leastShared, b.own.size())
	}
	for _, l := range ls {
		if keep && l.lender == b.lender {
			continue
		}
		if err := u.materialize(pid, l); err != nil {
			return nil, err
		}
		if keep {
			b.own = makeSpans(append(b.own, l.span))
		}
	}
	if !keep {
		return nil, nil
	}
	theirs, err := z.pages(fd, b.lender, v)
	if err != nil {
		return nil, err
	}
	b.drop = theirs.less(shared).less(b.own)
	return b, nil
}

// pages are those that stand in a process's window where a mapping is, at the
// process's addresses.
func (z *Zygote) pages(fd, pid int, v *image.VMA) (spans, error) {
	buf := make([]pagemap.Region, 1024)
	at := z.layout.park(pid, v.Start)
	var out []span
	queries := []pagemap.Query{{Mask: pagemap.Present}, {Mask: pagemap.Swapped}}
	if v.Kind == image.FileBacked {
		queries = []pagemap.Query{askPresent, askSwapped}
	}
	for _, q := range queries {
		e := pagemap.Scan(fd, at, at+v.Len(), q, buf, func(r pagemap.Region) {
			out = append(out, span{r.Start - at + v.Start, r.End - at + v.Start})
		})
		if e != 0 {
			return nil, fmt.Errorf("scan pages of a zygote: %w", e)
		}
	}
	return makeSpans(out), nil
}
