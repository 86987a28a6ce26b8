package memory

import (
	"fmt"

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

// askCopied asks for copies that were written since the last time.
var askCopied = pagemap.Query{
	Flags: pagemap.Protect | pagemap.Check, Invert: pagemap.File, Mask: pagemap.Written | pagemap.File,
	AnyOf: pagemap.Present | pagemap.Swapped, Return: pagemap.Present | pagemap.Swapped,
}

// askChanged asks what was written in an area since the last time.
func (a area) askChanged() pagemap.Query {
	if a.file {
		return askCopied
	}
	return askWritten
}

// written reports what was written in an area since the last scan, and protects
// it again.
func (t *Tracker) written(a area, add func(pagemap.Region)) error {
	var now []span
	e := t.ask(a.span, a.askChanged(), func(r pagemap.Region) {
		if a.file {
			now = append(now, span{r.Start, r.End})
		}
		add(r)
	})
	if e != 0 {
		return t.scanError(a.span, e)
	}
	if !a.file {
		return nil
	}
	if had := t.copies.in(a.span); len(had) > 0 {
		still, err := t.stillCopies(span{had[0].start, had[len(had)-1].end})
		if err != nil {
			return err
		}
		for _, s := range had.less(still) {
			add(pagemap.Region{Start: s.start, End: s.end}) // the file's page is there again
			if e := uffd.Unprotect(t.uffd, s.start, s.end); e != 0 {
				return t.scanError(s, e)
			}
		}
		now = append(now, had.and(still)...)
	}
	t.setCopies(a.span, now)
	return nil
}

// setCopies notes which copies there are in a range.
func (t *Tracker) setCopies(in span, now []span) {
	t.copies = makeSpans(append(t.copies.less(spans{in}), now...))
}

// stillCopies are the process's own pages in a range, those that are in swap, too.
func (t *Tracker) stillCopies(in span) (spans, error) {
	var out, swapped []span
	for _, q := range []struct {
		pagemap.Query
		to *[]span
	}{{askPresent, &out}, {askSwapped, &swapped}} {
		e := t.ask(in, q.Query, func(r pagemap.Region) { *q.to = append(*q.to, span{r.Start, r.End}) })
		if e != 0 {
			return nil, t.scanError(in, e)
		}
	}
	entries := t.scratch.frames[0][:]
	for _, s := range swapped {
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
	return makeSpans(out), nil
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
