package control

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Gate is a word of memory that a supervisor and its worker share: how many
// checkpoints stand. The worker does nothing meanwhile.
type Gate struct {
	file *os.File
	page []byte
	word *atomic.Int32
}

// NewGate makes a gate, for a supervisor.
func NewGate() (*Gate, error) {
	fd, err := unix.MemfdCreate("gate", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "gate")
	if err := f.Truncate(int64(os.Getpagesize())); err != nil {
		_ = f.Close()
		return nil, err
	}
	return openGate(f)
}

// OpenGate opens the gate that a client attached. The file stays the caller's.
func OpenGate(f *os.File) (*Gate, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if st.Size() < int64(os.Getpagesize()) { // it would be SIGBUS
		return nil, fmt.Errorf("a gate of %d bytes", st.Size())
	}
	return openGate(f)
}

func openGate(f *os.File) (*Gate, error) {
	page, err := unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map a gate: %w", err)
	}
	return &Gate{file: f, page: page, word: (*atomic.Int32)(unsafe.Pointer(&page[0]))}, nil
}

// Shut stops the other side, and Open lets it go on. They nest, and never wait.
func (g *Gate) Shut() { g.word.Add(1) }

// Open ends one Shut.
func (g *Gate) Open() { g.word.Add(-1) }

// Pass waits while the gate is shut, but not much longer than a checkpoint
// may take: whoever shut it may be gone.
func (g *Gate) Pass(ctx context.Context) {
	const look, most = 200 * time.Microsecond, 200 * time.Millisecond
	for waited := time.Duration(0); g.word.Load() > 0 && waited < most && ctx.Err() == nil; waited += look {
		time.Sleep(look)
	}
}

// Close unmaps the gate; a supervisor's file is closed with it.
func (g *Gate) Close() {
	_ = unix.Munmap(g.page)
	_ = g.file.Close()
}
