package pages

import (
	"context"
	"math/bits"
	"runtime"
	"sync"

	"github.com/sandtree/sandtree/internal/fault"
)

// Run is a run of adjacent pages that are there.
type Run struct {
	Addr uint64
	Len  uint64
	Data []byte // nil if they are all zero
}

// ready is a window with its pages in their places, or why not.
type ready struct {
	w    *Window
	data *[windowSize]byte
	err  error
}

// Read calls visit for all pages, by address. Chunks are read ahead on all
// processors; visit is called by the caller's goroutine alone, and must not keep
// the data.
func (m *Memory) Read(ctx context.Context, g Getter, visit func(Run) error) error {
	if err := m.Check(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	n := runtime.GOMAXPROCS(0)
	type job struct {
		w  *Window
		to chan ready
	}
	jobs := make(chan job, n)
	queue := make(chan chan ready, 4*n) // in order
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			var buf []byte
			for j := range jobs {
				r := ready{w: j.w, data: windowBuffers.Get().(*[windowSize]byte)}
				buf, r.err = j.w.load(g, r.data, buf)
				j.to <- r
			}
		})
	}
	wg.Go(func() {
		defer close(queue)
		defer close(jobs)
		for _, t := range m.Tables {
			ws, err := t.Read(g)
			if err != nil {
				to := make(chan ready, 1)
				to <- ready{err: err}
				select {
				case queue <- to:
				case <-ctx.Done():
				}
				return
			}
			for i := range ws {
				to := make(chan ready, 1)
				select {
				case jobs <- job{&ws[i], to}:
				case <-ctx.Done():
					return
				}
				select {
				case queue <- to:
				case <-ctx.Done():
					return
				}
			}
		}
	})
	defer wg.Wait()
	defer cancel()
	for {
		var to chan ready
		select {
		case to = <-queue:
		case <-ctx.Done():
			return fault.New(fault.Canceled, "%w", context.Cause(ctx))
		}
		if to == nil {
			return nil
		}
		r := <-to
		err := r.err
		if err == nil {
			err = r.w.runs(r.data, visit)
		}
		if r.data != nil {
			windowBuffers.Put(r.data)
		}
		if err != nil {
			return err
		}
	}
}

var windowBuffers = sync.Pool{New: func() any { return new([windowSize]byte) }}

// load puts the pages of all parts into their places. It returns the buffer that
// it was lent for the chunks.
func (w *Window) load(g Getter, data *[windowSize]byte, buf []byte) ([]byte, error) {
	for i := range w.Parts {
		p := &w.Parts[i]
		var err error
		if buf, err = p.pages(g, buf); err != nil {
			return buf, err
		}
		from := 0
		for has := p.Has; has != 0; has &= has - 1 {
			at := bits.TrailingZeros16(has)
			if p.Lost>>at&1 == 0 {
				copy(data[at*PageSize:(at+1)*PageSize], buf[from:])
			}
			from += PageSize
		}
	}
	return buf, nil
}

// runs visits a window's pages.
func (w *Window) runs(data *[windowSize]byte, visit func(Run) error) error {
	for mask := w.mask(); mask != 0; {
		at := bits.TrailingZeros16(mask)
		zero := w.Zero>>at&1 == 1
		same := mask & w.Zero
		if !zero {
			same = mask &^ w.Zero
		}
		n := bits.TrailingZeros16(^(same >> at))
		r := Run{Addr: w.N*windowSize + uint64(at)*PageSize, Len: uint64(n) * PageSize}
		if !zero {
			r.Data = data[at*PageSize : (at+n)*PageSize]
		}
		if err := visit(r); err != nil {
			return err
		}
		mask &^= uint16(1<<(at+n) - 1<<at)
	}
	return nil
}
