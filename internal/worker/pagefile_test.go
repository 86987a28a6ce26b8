package worker

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/sandtree/sandtree/internal/durable"
	"github.com/sandtree/sandtree/internal/durable/pages"
	"github.com/sandtree/sandtree/internal/worker/control"
)

// Processes that have the same pages at the same addresses have them once in the
// file; whatever is written, each finds its own.
func TestPagesStandOnce(t *testing.T) {
	const processes, windows, window = 5, 40, 16 * pages.PageSize
	r := rand.New(rand.NewPCG(1, 2))
	p, err := newPageFile(processes)
	if err != nil {
		t.Fatal(err)
	}
	defer p.file.Close()
	common := make([]byte, windows*window)
	for i := range common {
		common[i] = byte(r.Uint32())
	}
	// The same content elsewhere is another page.
	copy(common[window:2*window], common[:window])
	own := 0
	want := make([][]byte, processes)
	for pid := range processes {
		want[pid] = bytes.Clone(common)
		for w := range windows {
			b := want[pid][w*window : (w+1)*window]
			if pid > 0 && r.IntN(4) == 0 {
				own++
				b[r.IntN(window)]++
			}
			run := durable.Run{Addr: uint64(w * window), Len: window, Data: b}
			if w == 7 {
				clear(b)
				run.Data = nil
			}
			if err := p.add(pid, run); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := p.file.Truncate(p.size); err != nil {
		t.Fatal(err)
	}
	if most := int64(len(common) + own*pages.PageSize + processes*window); p.size > most {
		t.Errorf("%d bytes for %d that are common and %d pages that are not", p.size, len(common), own)
	}
	got := make([]int, processes)
	for _, run := range p.runs {
		b := make([]byte, run.Len)
		if _, err := p.file.ReadAt(b, run.At); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(b, want[run.PID][run.Addr:run.Addr+run.Len]) {
			t.Fatalf("process %d has other pages at %#x", run.PID, run.Addr)
		}
		got[run.PID] += len(b)
	}
	for pid, n := range got {
		if n != len(common) {
			t.Errorf("process %d has %d bytes of %d", pid, n, len(common))
		}
	}
}

// One process alone costs no comparison, and few runs.
func TestPagesOfOneProcess(t *testing.T) {
	p, err := newPageFile(1)
	if err != nil {
		t.Fatal(err)
	}
	defer p.file.Close()
	b := bytes.Repeat([]byte{7}, 4*pages.PageSize)
	for i := range 3 {
		if err := p.add(9, durable.Run{Addr: uint64(i * len(b)), Len: uint64(len(b)), Data: b}); err != nil {
			t.Fatal(err)
		}
	}
	if len(p.runs) != 1 || p.runs[0] != (control.Run{PID: 9, Len: uint64(3 * len(b))}) || p.size != int64(3*len(b)) {
		t.Errorf("%+v, %d bytes", p.runs, p.size)
	}
}
