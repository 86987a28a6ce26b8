package pages

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/sandtree/sandtree/internal/durable/cbor"
	"github.com/sandtree/sandtree/internal/durable/chunk"
	"github.com/sandtree/sandtree/internal/fault"
)

// Change is how a process's memory differs from its parent's record.
type Change struct {
	PID     int
	Mapped  Spans // nothing of the parent is kept outside
	Gone    Spans
	Changed Spans
	Source  io.ReaderAt // offset is the address
}

// Write keeps the memory of one process. parent is its memory in the parent's
// record, nil if nothing of it is kept. It tells how many bytes were read.
func Write(ctx context.Context, p Putter, g Getter, parent *Memory, c Change) (m Memory, read int64, err error) {
	old := map[uint64]Table{}
	var tables []uint64 // numbers of those that may come to be, in order
	if parent != nil {
		if err := parent.Check(); err != nil {
			return Memory{}, 0, err
		}
		for _, t := range parent.Tables {
			old[t.N] = t
		}
	}
	tables = numbers(parent, c.Changed)
	w := &writer{
		ctx: ctx, p: p, g: g, c: c, m: Memory{PID: c.PID},
		mapped: cursor{spans: c.Mapped}, gone: cursor{spans: c.Gone}, changed: cursor{spans: c.Changed},
	}
	for _, n := range tables {
		var ws []Window
		t, was := old[n]
		if was {
			if ws, err = t.Read(g); err != nil {
				return Memory{}, 0, err
			}
		}
		if err := w.table(n, t, ws); err != nil {
			return Memory{}, 0, fmt.Errorf("memory of process %d: %w", c.PID, err)
		}
	}
	return w.m, w.read.Load(), nil
}

// numbers lists the tables that the parent has or that something changed in.
func numbers(parent *Memory, changed Spans) (out []uint64) {
	i := 0
	add := func(n uint64) {
		if len(out) == 0 || out[len(out)-1] < n {
			out = append(out, n)
		}
	}
	upTo := func(n uint64) {
		for parent != nil && i < len(parent.Tables) && parent.Tables[i].N <= n {
			add(parent.Tables[i].N)
			i++
		}
	}
	changed.windows(func(w uint64) {
		upTo(w / tableWindows)
		add(w / tableWindows)
	})
	upTo(^uint64(0))
	return out
}

type writer struct {
	ctx                   context.Context
	p                     Putter
	g                     Getter
	c                     Change
	m                     Memory
	mapped, gone, changed cursor
	read                  atomic.Int64
}

// work is a window of which pages are to be read.
type work struct {
	w    *Window
	mask uint16
}

// table writes one table; old is the parent's, if it has one.
func (w *writer) table(n uint64, old Table, parent []Window) error {
	var out []Window
	var todo []work
	same := true
	i := 0
	// Pointers into out are taken when it does not grow any more.
	type change struct {
		at   int
		mask uint16
	}
	var changes []change
	first := n * tableWindows
	for num := first; num < first+tableWindows; num++ {
		win := Window{N: num}
		if i < len(parent) && parent[i].N == num {
			win = parent[i]
			win.Parts = append([]Part(nil), win.Parts...)
			i++
			lost := win.mask() & (^w.mapped.in(num) | w.gone.in(num))
			if lost != 0 {
				win.drop(lost)
				same = false
			}
		}
		if mask := w.changed.in(num); mask != 0 {
			win.drop(mask)
			same = false
			changes = append(changes, change{len(out), mask})
			out = append(out, win)
			continue
		}
		if win.mask() != 0 {
			out = append(out, win)
		}
	}
	for _, c := range changes {
		todo = append(todo, work{&out[c.at], c.mask})
	}
	if err := w.readAll(todo); err != nil {
		return err
	}
	return w.keep(n, old, out, same)
}

// keep makes the table of windows, or keeps the parent's.
func (w *writer) keep(n uint64, old Table, ws []Window, same bool) error {
	if len(ws) == 0 {
		return nil
	}
	for i := range ws {
		w.m.Bytes += int64(bits.OnesCount16(ws[i].mask())) * PageSize
		for _, p := range ws[i].Parts {
			if err := w.p.Reuse(p.ID); err != nil {
				return err
			}
		}
	}
	if same {
		w.m.Tables = append(w.m.Tables, old)
		return w.p.Reuse(old.ID)
	}
	b, err := cbor.Marshal(ws)
	if err != nil {
		return err
	}
	id, err := w.p.Put(b)
	w.m.Tables = append(w.m.Tables, Table{n, id})
	return err
}

// readAll reads windows on all processors: comparing and hashing take longer
// than copying.
func (w *writer) readAll(todo []work) error {
	n := min(runtime.GOMAXPROCS(0), (len(todo)+15)/16)
	var next atomic.Int64
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			r := reader{w: w}
			for {
				at := int(next.Add(1)) - 1
				if at >= len(todo) {
					return
				}
				if errs[i] = r.window(todo[at]); errs[i] != nil {
					next.Store(int64(len(todo))) // the others stop, too
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// reader reads windows, one at a time.
type reader struct {
	w   *writer
	buf [windowSize]byte
	old []byte
}

var zeros [PageSize]byte

func (r *reader) window(t work) error {
	if err := r.w.ctx.Err(); err != nil {
		return fault.New(fault.Canceled, "%w", err)
	}
	// Each page goes to its own place in buf first.
	for at := 0; at < WindowPages; {
		if t.mask>>at&1 == 0 {
			at++
			continue
		}
		n := bits.TrailingZeros16(^(t.mask >> at))
		b := r.buf[at*PageSize : (at+n)*PageSize]
		addr := t.w.N*windowSize + uint64(at)*PageSize
		if got, err := r.w.c.Source.ReadAt(b, int64(addr)); got < len(b) {
			return fmt.Errorf("read %d bytes at %#x: only %d: %w", len(b), addr, got, err)
		}
		at += n
	}
	r.w.read.Add(int64(bits.OnesCount16(t.mask)) * PageSize)
	var has uint16
	for at := range WindowPages {
		switch bit := uint16(1) << at; {
		case t.mask&bit == 0:
		case bytes.Equal(r.buf[at*PageSize:(at+1)*PageSize], zeros[:]):
			t.w.Zero |= bit
		default:
			has |= bit
		}
	}
	if has == 0 {
		return nil
	}
	if len(t.w.Parts) >= maxParts || t.w.lost() > WindowPages {
		if err := r.merge(t.w); err != nil {
			return err
		}
		for i := range t.w.Parts {
			has |= t.w.Parts[i].live()
		}
		t.w.Parts = t.w.Parts[:0]
	}
	id, err := r.w.p.Put(r.compact(has))
	t.w.Parts = append(t.w.Parts, Part{ID: id, Has: has})
	return err
}

// merge reads the pages of all parts into their places in buf.
func (r *reader) merge(w *Window) error {
	for i := range w.Parts {
		p := &w.Parts[i]
		var err error
		if r.old, err = p.pages(r.w.g, r.old); err != nil {
			return err
		}
		for at, from := 0, 0; at < WindowPages; at++ {
			if p.Has>>at&1 == 0 {
				continue
			}
			if p.Lost>>at&1 == 0 {
				copy(r.buf[at*PageSize:(at+1)*PageSize], r.old[from:])
			}
			from += PageSize
		}
	}
	return nil
}

// compact moves pages together and returns them.
func (r *reader) compact(has uint16) []byte {
	n := 0
	for at := range WindowPages {
		if has>>at&1 == 0 {
			continue
		}
		if at*PageSize != n {
			copy(r.buf[n:n+PageSize], r.buf[at*PageSize:])
		}
		n += PageSize
	}
	return r.buf[:n]
}

// pages reads the pages that a part has.
func (p *Part) pages(g Getter, buf []byte) ([]byte, error) {
	b, err := g.Append(buf[:0], p.ID)
	if err == nil && len(b) != bits.OnesCount16(p.Has)*PageSize {
		err = fmt.Errorf("%w %s: %d bytes, for pages %#x", chunk.ErrCorrupt, p.ID, len(b), p.Has)
	}
	return b, err
}
