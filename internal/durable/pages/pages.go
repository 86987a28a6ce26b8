// Package pages keeps the private memory of a process as chunks, so that a
// checkpoint costs what was written since its parent and no more.
//
// Memory is divided into windows of 16 pages, and these are listed in tables of
// 1024 windows each (64 MiB), which are chunks themselves. A window says which
// of its pages the process has: those that are zero, and parts. A part is a
// chunk of some pages of the window, of which some may have been replaced by a
// later part or may be gone. So writing one page adds a chunk of one page, and
// leaves the others; when a window has too many parts it is written anew as one.
package pages

import (
	"fmt"
	"math/bits"

	"github.com/sandtree/sandtree/internal/durable/cbor"
	"github.com/sandtree/sandtree/internal/durable/chunk"
)

const (
	// PageSize is the unit of memory.
	PageSize = 4096
	// WindowPages is the number of pages in a window.
	WindowPages = 16
	windowSize  = WindowPages * PageSize
	// tableWindows is the number of windows that a table covers.
	tableWindows = 1024
	// maxParts is the most parts that a window is left with.
	maxParts = 4
	// maxAddress is where user space ends (x86-64 with five levels of page
	// tables).
	maxAddress = 1 << 56
)

// Memory is the private memory of one process.
type Memory struct {
	PID int `cbor:"p"`
	// Tables are those that have a window, by number.
	Tables []Table `cbor:"t"`
	// Bytes is the length of all pages that are there.
	Bytes int64 `cbor:"b"`
}

// Table says which chunk holds the windows from 1024 times N on: a CBOR array of
// [Window].
type Table struct {
	N  uint64   `cbor:"n"`
	ID chunk.ID `cbor:"i"`
}

// Window is 64 KiB of addresses, of which at least one page is there.
type Window struct {
	// N is the window's number: its address divided by 65536.
	N uint64 `cbor:"n"`
	// Zero are the pages that are there and zero. Bit 0 is the first page.
	Zero uint16 `cbor:"z"`
	// Parts have the others.
	Parts []Part `cbor:"p"`
}

// Part is a chunk of pages of one window.
type Part struct {
	ID chunk.ID `cbor:"i"`
	// Has are the pages in the chunk, one behind the other.
	Has uint16 `cbor:"h"`
	// Lost are those of them that do not count any more.
	Lost uint16 `cbor:"l"`
}

// live are the pages that a part counts for.
func (p *Part) live() uint16 { return p.Has &^ p.Lost }

// mask are the pages that are there.
func (w *Window) mask() uint16 {
	m := w.Zero
	for i := range w.Parts {
		m |= w.Parts[i].live()
	}
	return m
}

// lost is the number of pages in chunks that do not count any more.
func (w *Window) lost() (n int) {
	for i := range w.Parts {
		n += bits.OnesCount16(w.Parts[i].Lost)
	}
	return n
}

// drop takes pages out of a window.
func (w *Window) drop(mask uint16) {
	w.Zero &^= mask
	kept := w.Parts[:0]
	for _, p := range w.Parts {
		p.Lost |= p.Has & mask
		if p.live() != 0 {
			kept = append(kept, p)
		}
	}
	w.Parts = kept
}

// check tells what no table can have.
func check(t Table, ws []Window) error {
	last := -1
	for i := range ws {
		w := &ws[i]
		n := int(w.N - t.N*tableWindows)
		if w.N/tableWindows != t.N || n <= last || w.N >= maxAddress/windowSize {
			return fmt.Errorf("%w: window %d in table %d", chunk.ErrCorrupt, w.N, t.N)
		}
		last = n
		seen := w.Zero
		for j := range w.Parts {
			p := &w.Parts[j]
			if p.live()&seen != 0 || p.live() == 0 || p.Lost&^p.Has != 0 {
				return fmt.Errorf("%w: part %d of window %d", chunk.ErrCorrupt, j, w.N)
			}
			seen |= p.live()
		}
		if seen == 0 || len(w.Parts) > WindowPages {
			return fmt.Errorf("%w: window %d", chunk.ErrCorrupt, w.N)
		}
	}
	return nil
}

// Getter reads chunks, checked.
type Getter interface {
	Append(dst []byte, id chunk.ID) ([]byte, error)
}

// Putter takes chunks.
type Putter interface {
	Put(b []byte) (chunk.ID, error)
	Reuse(id chunk.ID) error
}

// Read reads a table.
func (t Table) Read(g Getter) ([]Window, error) {
	b, err := g.Append(nil, t.ID)
	if err != nil {
		return nil, err
	}
	var ws []Window
	if err := cbor.Unmarshal(b, &ws); err != nil {
		return nil, fmt.Errorf("%w: table %s: %w", chunk.ErrCorrupt, t.ID, err)
	}
	return ws, check(t, ws)
}

// Check tells what no memory can have.
func (m *Memory) Check() error {
	for i, t := range m.Tables {
		if i > 0 && t.N <= m.Tables[i-1].N || t.N >= maxAddress/windowSize/tableWindows {
			return fmt.Errorf("%w: table %d of process %d", chunk.ErrCorrupt, t.N, m.PID)
		}
	}
	if m.Bytes < 0 {
		return fmt.Errorf("%w: %d bytes of process %d", chunk.ErrCorrupt, m.Bytes, m.PID)
	}
	return nil
}

// Chunks calls visit for each chunk that the memory refers to with its length, 0
// if it is not known from the reference. Tables for which enter returns false
// are not read; visit is not called for tables.
func (m *Memory) Chunks(g Getter, enter func(chunk.ID) bool, visit func(id chunk.ID, length int) error) error {
	if err := m.Check(); err != nil {
		return err
	}
	for _, t := range m.Tables {
		if !enter(t.ID) {
			continue
		}
		ws, err := t.Read(g)
		if err != nil {
			return err
		}
		for i := range ws {
			for _, p := range ws[i].Parts {
				if err := visit(p.ID, bits.OnesCount16(p.Has)*PageSize); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// Measure goes through all tables and tells what Bytes should be.
func (m *Memory) Measure(g Getter) (bytes int64, err error) {
	for _, t := range m.Tables {
		ws, err := t.Read(g)
		if err != nil {
			return 0, err
		}
		for i := range ws {
			bytes += int64(bits.OnesCount16(ws[i].mask())) * PageSize
		}
	}
	return bytes, nil
}
