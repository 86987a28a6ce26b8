package memory

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/pagemap"
	"github.com/sandtree/sandtree/internal/linux/uffd"
	"github.com/sandtree/sandtree/internal/process/image"
)

// Protecting a mapping fills the page tables of all of it, so that a sparse one
// of 64 GiB would stand for seconds and grow by 128 MiB. A mapping of more than
// maxWhole is registered as a whole, which costs nothing, and protected piece by
// piece, where it has pages. A page that comes where no piece is has no
// protection and shows so.
const (
	maxWhole  = 256 << 20
	pieceSize = 2 << 20
)

// large reports whether a mapping is tracked in pieces.
func large(v *image.VMA) bool { return v.Len() > maxWhole }

// pieces are the tracked parts of large mappings.
type pieces struct {
	of  spans // the large mappings as of the last scan
	all spans // their parts that are protected
}

// scanLarge finds what changed in a large mapping.
func (t *Tracker) scanLarge(v *image.VMA, add func(pagemap.Region)) error {
	whole := span{v.Start, v.End}
	// A mapping that was tracked as a whole, or was none, has protection where no
	// piece is known.
	known := !t.full && t.pieces.know(whole)
	switch e := t.registered(whole); {
	case e != 0 && e != unix.EPERM:
		return t.scanError(whole, e)
	case e != 0 || !known:
		if e == 0 {
			if e := uffd.Unregister(t.uffd, v.Start, v.End); e != 0 {
				return fmt.Errorf("begin anew to track process %d at %#x-%#x: %w", t.pid, v.Start, v.End, e)
			}
		}
		v.Fresh = true
		if err := t.own(span{v.Start, v.End}, add); err != nil {
			return err
		}
		return t.beginLarge(areaOf(v), t.scratch.regions)
	}
	a := areaOf(v)
	fresh, err := t.populated(a, spans{whole}.less(t.pieces.all), t.scratch.regions)
	if err != nil {
		return err
	}
	for _, s := range t.pieces.note(whole, fresh) {
		if err := t.written(area{s, a.file}, add); err != nil {
			return err
		}
	}
	return nil
}

// beginLarge registers a large mapping and protects what it has.
func (t *Tracker) beginLarge(whole area, regions []pagemap.Region) error {
	if e := uffd.Register(t.uffd, whole.start, whole.end); e != 0 {
		return fmt.Errorf("track writes of process %d to %#x-%#x: %w", t.pid, whole.start, whole.end, e)
	}
	t.pieces.all = t.pieces.all.less(spans{whole.span})
	has, err := t.populated(whole, spans{whole.span}, regions)
	if err != nil {
		return err
	}
	for _, s := range t.pieces.note(whole.span, has) {
		if err := t.protectPages(area{s, whole.file}, regions); err != nil {
			return err
		}
	}
	return nil
}

// askOwn are pages that are there, without those that were only read.
var askOwn = pagemap.Query{Invert: pagemap.ZeroPage, Mask: pagemap.Present | pagemap.ZeroPage}

// populated are the pages that are there in some ranges of an area; in mappings of
// files, the copies.
func (t *Tracker) populated(a area, in spans, regions []pagemap.Region) (out []span, err error) {
	queries := []pagemap.Query{askOwn, {Mask: pagemap.Swapped}}
	if a.file {
		queries = []pagemap.Query{askPresent, askSwapped}
	}
	for _, s := range in {
		for _, q := range queries {
			e := pagemap.Scan(t.pagemap, s.start, s.end, q, regions, func(r pagemap.Region) {
				out = append(out, span{r.Start, r.End})
			})
			if e != 0 {
				return nil, t.scanError(s, e)
			}
		}
	}
	return out, nil
}

// know reports whether all of a mapping was of large ones at the last scan.
func (p *pieces) know(whole span) bool { return slices.Equal(p.of.in(whole), spans{whole}) }

// note makes pieces of a large mapping of where it has pages, and returns all
// of its pieces.
func (p *pieces) note(whole span, pages []span) spans {
	all := append([]span(nil), p.all...)
	for _, s := range pages {
		all = append(all, span{
			max(s.start&^(pieceSize-1), whole.start),
			min((s.end+pieceSize-1)&^(pieceSize-1), whole.end),
		})
	}
	p.all = makeSpans(all)
	p.of = makeSpans(append(p.of, whole))
	return p.all.in(whole)
}

// keep forgets all that is not of the large mappings that there are now.
func (p *pieces) keep(vmas []image.VMA) {
	var now spans
	for i := range vmas {
		if v := &vmas[i]; Tracks(v) && large(v) {
			now = append(now, span{v.Start, v.End})
		}
	}
	p.of, p.all = p.of.and(now), p.all.and(now)
}
