package worker

import (
	"context"
	"fmt"
	"io"
	"os"
	"sort"

	"github.com/sandtree/sandtree/internal/process/memory"
)

// source reads the memory of a process at its own addresses from where it
// stands in its zygote.
type source struct {
	worker  *Worker
	ctx     context.Context //nolint:containedctx // of the one call that it is made for
	windows []memory.Window
	file    *os.File
}

// readAtOnce bounds one read, so that a checkpoint does not wait for it.
const readAtOnce = 256 << 10

// ReadAt implements [io.ReaderAt]; the offset is an address.
func (s *source) ReadAt(p []byte, off int64) (n int, err error) {
	for n < len(p) {
		s.worker.pass(s.ctx)
		if err := s.ctx.Err(); err != nil {
			return n, err
		}
		at := uint64(off) + uint64(n) //nolint:gosec // an address
		i := sort.Search(len(s.windows), func(i int) bool { return s.windows[i].End > at })
		if i == len(s.windows) || s.windows[i].Start > at {
			return n, fmt.Errorf("the zygote has nothing at %#x", at)
		}
		w := s.windows[i]
		want := min(len(p)-n, readAtOnce)
		if room := w.End - at; uint64(want) > room {
			want = int(room) //nolint:gosec // less than want
		}
		k, err := s.file.ReadAt(p[n:n+want], int64(w.At+at-w.Start)) //nolint:gosec // an address
		n += k
		if err != nil && (err != io.EOF || k < want) {
			return n, fmt.Errorf("read the zygote at %#x: %w", at, err)
		}
	}
	return n, nil
}
