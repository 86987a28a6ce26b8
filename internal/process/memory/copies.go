package memory

import (
	"fmt"
	"slices"

	"github.com/sandtree/sandtree/internal/linux/pagemap"
	"github.com/sandtree/sandtree/internal/linux/uffd"
)

// In a private mapping of a file the process has pages of its own, copies, where
// it has written, and sees the file's elsewhere. Only copies are protected. If
// one is dropped (MADV_DONTNEED), the kernel leaves a mark of the protection
// (Documentation/admin-guide/mm/userfaultfd.rst) that no scan reports as
// written, so the tracker knows which copies there were.
//
// The file's pages and places without a page are not protected: where a mark
// stands in a mapping that is locked (mlock(2)) and the page is not in the page
// cache, the kernel takes the fault again and again without an end, with the
// memory's lock held (filemap_fault_recheck_pte_none, seen in Linux 6.18).

// askCopies asks for all copies and protects them; those that were written since the
// last time are told by their category.
var askCopies = pagemap.Query{
	Flags: pagemap.Protect | pagemap.Check, Invert: pagemap.File, Mask: pagemap.File,
	AnyOf: pagemap.Present | pagemap.Swapped, Return: pagemap.Written | pagemap.Present | pagemap.Swapped,
}

// written reports what was written in an area since the last scan, and protects
// it again.
func (t *Tracker) written(a area, add func(pagemap.Region)) error {
	if !a.file {
		if e := t.ask(a.span, askWritten, add); e != 0 {
			return t.scanError(a.span, e)
		}
		return nil
	}
	var now, swapped []span
	e := t.ask(a.span, askCopies, func(r pagemap.Region) {
		s := span{r.Start, r.End}
		switch {
		case r.Categories&pagemap.Written != 0:
			now = append(now, s)
			add(r)
		case r.Categories&pagemap.Present != 0:
			now = append(now, s)
		default:
			swapped = append(swapped, s)
		}
	})
	if e != 0 {
		return t.scanError(a.span, e)
	}
	if len(swapped) > 0 { // in swap, or nothing but a mark
		in, err := t.inSwap(swapped)
		if err != nil {
			return err
		}
		now = append(now, in...)
	}
	copies, was := makeSpans(now), t.copies.in(a.span)
	if slices.Equal(was, copies) {
		return nil
	}
	for _, s := range was.less(copies) {
		add(pagemap.Region{Start: s.start, End: s.end}) // the file's page is there again
		if e := uffd.Unprotect(t.uffd, s.start, s.end); e != 0 {
			return t.scanError(s, e)
		}
	}
	t.setCopies(a.span, copies)
	return nil
}

// setCopies notes which copies there are in a range.
func (t *Tracker) setCopies(in span, now []span) {
	t.copies = makeSpans(append(t.copies.less(spans{in}), now...))
}

// inSwap are the pages of some ranges that are more than a mark.
func (t *Tracker) inSwap(ranges []span) (out []span, err error) {
	entries := t.scratch.frames[0][:]
	for _, s := range ranges {
		for at := s.start; at < s.end; {
			n := min(int((s.end-at)/pageSize), len(entries))
			if err := pagemap.Entries(t.pagemap, at, entries[:n]); err != nil {
				return nil, fmt.Errorf("process %d: %w", t.pid, err)
			}
			for _, entry := range entries[:n] {
				if !pagemap.Mark(entry) {
					out = append(out, span{at, at + pageSize})
				}
				at += pageSize
			}
		}
	}
	return out, nil
}

// keepCopies forgets copies in mappings that are not there any more.
func (t *Tracker) keepCopies() {
	if len(t.copies) == 0 {
		return
	}
	var now []span
	for i := range t.vmas {
		if v := &t.vmas[i]; Tracks(v) && areaOf(v).file {
			now = append(now, span{v.Start, v.End})
		}
	}
	t.copies = t.copies.and(makeSpans(now))
}
