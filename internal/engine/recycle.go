package engine

import (
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process"
)

// recycler keeps files in memory that a checkpoint held which is gone, for shared memory
// of the next ones: memory that was just in use takes a fraction of the time to fill. What
// nobody has wanted for a while is given back.
type recycler struct {
	mu     sync.Mutex
	files  []recycled
	closed bool
	cool   *time.Timer
}

type recycled struct {
	fd   int
	size int64
}

// What is kept for the next checkpoints: as many as those that follow one another quickly
// are about to need, of so many bytes together.
const (
	mostRecycled      = mostDeferred + 1
	mostRecycledBytes = 64 << 20
)

// file returns an anonymous file of a size, and whether it has been used and has holes to
// be made.
func (r *recycler) file(size int64) (fd int, used bool, err error) {
	r.mu.Lock()
	i := slices.IndexFunc(r.files, func(f recycled) bool { return f.size == size })
	if i >= 0 {
		fd = r.files[i].fd
		r.files = slices.Delete(r.files, i, i+1)
	}
	r.mu.Unlock()
	if i >= 0 {
		return fd, true, nil
	}
	fd, err = process.MemoryFile(size)
	return fd, false, err
}

// give takes over a file that nobody else uses any more.
func (r *recycler) give(fd int) {
	f := recycled{fd: fd}
	if !f.fits() {
		_ = unix.Close(fd)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	total := f.size
	for _, o := range r.files {
		total += o.size
	}
	if r.closed || len(r.files) == mostRecycled || total > mostRecycledBytes {
		_ = unix.Close(fd)
		return
	}
	r.files = append(r.files, f)
	if r.cool == nil {
		r.cool = time.AfterFunc(coolAfter, r.empty)
	} else {
		r.cool.Reset(coolAfter)
	}
}

// fits reports whether a file can be filled anew: it is one in memory that may be written,
// of whole pages.
func (f *recycled) fits() bool {
	var st unix.Stat_t
	if unix.Fstat(f.fd, &st) != nil || st.Size%4096 != 0 {
		return false
	}
	f.size = st.Size
	flags, err := unix.FcntlInt(uintptr(f.fd), unix.F_GETFL, 0)
	if err != nil || flags&unix.O_ACCMODE != unix.O_RDWR {
		return false
	}
	seals, err := unix.FcntlInt(uintptr(f.fd), unix.F_GET_SEALS, 0)
	return err == nil && seals&^unix.F_SEAL_SEAL == 0
}

// empty gives back all that is kept.
func (r *recycler) empty() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.files {
		_ = unix.Close(f.fd)
	}
	r.files = nil
}

func (r *recycler) close() {
	r.mu.Lock()
	r.closed = true
	if r.cool != nil {
		r.cool.Stop()
	}
	r.mu.Unlock()
	r.empty()
}
