package chunkstore

import (
	"errors"
	"io/fs"
	"os"
	"sync"

	"github.com/sandtree/sandtree/internal/durable/chunk"
	"github.com/sandtree/sandtree/internal/durable/disk"
	"github.com/sandtree/sandtree/internal/durable/pack"
)

// maxOpen is how many packs stay open to be read from.
const maxOpen = 128

var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 160<<10); return &b }}

// Append appends a chunk to dst. It was checked against its name.
func (s *Store) Append(dst []byte, id chunk.ID) ([]byte, error) {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	// A pack may move while it is about to be opened, and be closed while it is
	// read; then it is found at another place. Each round of the loop but the
	// last is one move by somebody else.
	for try := 0; ; try++ {
		p, e, err := s.find(id)
		if err != nil {
			return dst, err
		}
		f, done, err := s.openPack(p)
		if err == nil {
			dst, err = pack.Read(f, e, dst, *buf)
			done()
		}
		if err == nil {
			return dst, nil
		}
		if moved := errors.Is(err, fs.ErrNotExist) || errors.Is(err, os.ErrClosed); !moved || try == 8 {
			return dst, disk.Errorf("%w", describe(id, p.name, err))
		}
		if err := s.Refresh(); err != nil {
			return dst, err
		}
	}
}

// openPack returns a pack's file, which may be closed by others at any time, and
// what to call when it was read.
func (s *Store) openPack(p *packFile) (f *os.File, done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.file != nil {
		return p.file, func() {}, nil
	}
	if f, err = os.Open(s.path(p.dir, p.name)); err != nil {
		return nil, nil, err
	}
	if s.open >= maxOpen || s.packs[p.name] != p {
		return f, func() { _ = f.Close() }, nil
	}
	p.file = f
	s.open++
	return f, func() {}, nil
}

func (s *Store) closePack(p *packFile) error {
	if p.file == nil {
		return nil
	}
	err := p.file.Close()
	p.file = nil
	s.open--
	return err
}
