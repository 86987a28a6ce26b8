package pages_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/sandtree/sandtree/internal/durable/chunk"
	"github.com/sandtree/sandtree/internal/durable/pages"
)

const page = pages.PageSize

// kept is a store of chunks in memory that notices what nobody relied on.
type kept struct {
	mu     sync.Mutex
	chunks map[chunk.ID][]byte
	used   map[chunk.ID]bool
	put    int64
}

func newKept() *kept { return &kept{chunks: map[chunk.ID][]byte{}, used: map[chunk.ID]bool{}} }

func (k *kept) Put(b []byte) (chunk.ID, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	id := chunk.Sum(b)
	if k.chunks[id] == nil {
		k.put += int64(len(b))
	}
	k.chunks[id] = bytes.Clone(b)
	k.used[id] = true
	return id, nil
}

func (k *kept) Reuse(id chunk.ID) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.chunks[id] == nil {
		return fmt.Errorf("chunk %s is not there", id)
	}
	k.used[id] = true
	return nil
}

func (k *kept) Append(dst []byte, id chunk.ID) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.chunks[id] == nil {
		return dst, fmt.Errorf("chunk %s is not there", id)
	}
	return append(dst, k.chunks[id]...), nil
}

// sweep forgets what the last checkpoint did not rely on.
func (k *kept) sweep() {
	for id := range k.chunks {
		if !k.used[id] {
			delete(k.chunks, id)
		}
	}
	clear(k.used)
}

// memory is what a process has, by page number. A page that is there may be
// zero.
type memory map[uint64][]byte

func (m memory) ReadAt(b []byte, at int64) (int, error) {
	for i := 0; i < len(b); i += page {
		p := m[uint64(at+int64(i))/page]
		if p == nil {
			return i, io.ErrUnexpectedEOF
		}
		copy(b[i:], p)
	}
	return len(b), nil
}

func drawSpans(t *rapid.T, name string, maxPages uint64) pages.Spans {
	var out []pages.Span
	for range rapid.IntRange(0, 5).Draw(t, name) {
		// Around the border of two tables, so that all numbers are small.
		start := 1024*16 - 100 + rapid.Uint64Range(0, 200).Draw(t, "start")
		n := rapid.Uint64Range(1, maxPages).Draw(t, "pages")
		out = append(out, pages.Span{Start: start * page, End: (start + n) * page})
	}
	s, err := pages.NewSpans(out)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func each(s pages.Spans, f func(n uint64)) {
	for _, a := range s {
		for n := a.Start / page; n < a.End/page; n++ {
			f(n)
		}
	}
}

// TestRandomHistory writes checkpoint after checkpoint of memory that changes
// at random, and reads each.
func TestRandomHistory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := newKept()
		live := memory{}
		var parent *pages.Memory
		for round := range rapid.IntRange(1, 12).Draw(t, "rounds") {
			c := pages.Change{PID: 7, Source: live}
			full := round == 0 || rapid.IntRange(0, 9).Draw(t, "full") == 0
			c.Mapped = drawSpans(t, "mapped", 150)
			c.Gone = drawSpans(t, "gone", 20)
			c.Changed = drawSpans(t, "changed", 20)
			now := memory{}
			if !full {
				each(c.Mapped, func(n uint64) {
					if live[n] != nil {
						now[n] = live[n]
					}
				})
				each(c.Gone, func(n uint64) { delete(now, n) })
			}
			each(c.Changed, func(n uint64) {
				now[n] = make([]byte, page)
				if v := rapid.Uint64Range(0, 3).Draw(t, "value"); v > 0 {
					binary.LittleEndian.PutUint64(now[n], v+uint64(round)<<8)
				}
			})
			live, c.Source = now, now
			old := parent
			if full {
				old = nil
			}
			m, read, err := pages.Write(context.Background(), k, k, old, c)
			if err != nil {
				t.Fatal(err)
			}
			var changed int64
			each(c.Changed, func(uint64) { changed += page })
			if read != changed {
				t.Fatalf("read %d bytes of %d that changed", read, changed)
			}
			k.sweep()
			same(t, k, &m, live)
			parent = &m
		}
	})
}

func same(t *rapid.T, k *kept, m *pages.Memory, want memory) {
	got := memory{}
	last := uint64(0)
	err := m.Read(context.Background(), k, func(r pages.Run) error {
		if r.Addr < last || r.Len == 0 || r.Data != nil && uint64(len(r.Data)) != r.Len {
			t.Fatalf("run of %d at %#x after %#x, %d bytes", r.Len, r.Addr, last, len(r.Data))
		}
		last = r.Addr + r.Len
		for i := uint64(0); i < r.Len; i += page {
			p := make([]byte, page)
			if r.Data != nil {
				copy(p, r.Data[i:])
			}
			got[(r.Addr+i)/page] = p
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(want) || m.Bytes != int64(len(want))*page {
		t.Fatalf("%d pages, and %d bytes counted; want %d", len(got), m.Bytes, len(want))
	}
	for n, p := range want {
		if !bytes.Equal(got[n], p) {
			t.Fatalf("page %#x is %x, not %x", n, got[n][:8], p[:8])
		}
	}
}

// TestCostIsWhatChanged: one page in each window costs as much as these pages,
// and what is zero costs nothing.
func TestCostIsWhatChanged(t *testing.T) {
	const n = 4096
	live := memory{}
	all := pages.Span{Start: 0, End: n * page}
	for i := range uint64(n) {
		live[i] = make([]byte, page)
		if i < n/2 {
			binary.LittleEndian.PutUint64(live[i], i+1)
		}
	}
	k := newKept()
	m, _, err := pages.Write(t.Context(), k, k, nil, pages.Change{Changed: pages.Spans{all}, Source: live})
	if err != nil {
		t.Fatal(err)
	}
	if over := k.put - n/2*page; over < 0 || over > 32<<10 {
		t.Errorf("the first checkpoint of %d bytes put %d", n/2*page, k.put)
	}
	for round := range uint64(20) {
		var changed []pages.Span
		for i := uint64(3); i < n/2; i += 16 {
			live[i] = bytes.Clone(live[i])
			binary.LittleEndian.PutUint64(live[i][8:], round+1)
			changed = append(changed, pages.Span{Start: i * page, End: (i + 1) * page})
		}
		k.put = 0
		s, err := pages.NewSpans(changed)
		if err != nil {
			t.Fatal(err)
		}
		m, _, err = pages.Write(t.Context(), k, k, &m, pages.Change{Mapped: pages.Spans{all}, Changed: s, Source: live})
		if err != nil {
			t.Fatal(err)
		}
		if limit := int64(len(changed)*page + 32<<10); k.put > limit {
			t.Errorf("round %d put %d bytes, for %d that changed", round, k.put, len(changed)*page)
		}
	}
}

func TestSpans(t *testing.T) {
	for _, bad := range []pages.Span{{0, 0}, {page, 0}, {1, page}, {0, page + 1}, {0, 1 << 57}} {
		if _, err := pages.NewSpans([]pages.Span{bad}); err == nil {
			t.Errorf("%+v is taken", bad)
		}
	}
	s, err := pages.NewSpans([]pages.Span{{4 * page, 6 * page}, {0, page}, {page, 2 * page}, {5 * page, 7 * page}})
	if want := (pages.Spans{{0, 2 * page}, {4 * page, 7 * page}}); err != nil || !slices.Equal(s, want) {
		t.Errorf("%v, %v; want %v", s, err, want)
	}
}

// FuzzTable: a table that is taken is read without harm.
func FuzzTable(f *testing.F) {
	k := newKept()
	live := memory{0: make([]byte, page), 1: bytes.Repeat([]byte{1}, page)}
	m, _, err := pages.Write(f.Context(), k, k, nil, pages.Change{Changed: pages.Spans{{0, 2 * page}}, Source: live})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(k.chunks[m.Tables[0].ID])
	f.Add([]byte{0x80})
	f.Fuzz(func(t *testing.T, table []byte) {
		id, _ := k.Put(append([]byte{}, table...))
		m := pages.Memory{Tables: []pages.Table{{ID: id}}}
		_ = m.Read(t.Context(), k, func(r pages.Run) error {
			if r.Len == 0 || r.Addr%page != 0 {
				t.Errorf("%+v", r)
			}
			return nil
		})
	})
}
