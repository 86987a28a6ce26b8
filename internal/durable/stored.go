package durable

import (
	"context"

	"github.com/sandtree/sandtree/internal/process/image"
)

// Stored is an open record. It holds a lease: the record can be read until it
// is closed, also if it is removed meanwhile.
type Stored struct{}

// Get opens a record. One that a newer version wrote, with what this one does
// not know, is refused with Unsupported.
func (r *Repository) Get(ctx context.Context, id string) (*Stored, error) {
	return nil, notYet("open a record")
}

// Info describes the record.
func (s *Stored) Info() Info { return Info{} }

// Tree returns the image of the processes, nil if the checkpoint has none. Files
// in it are new anonymous ones (memfd) with the same content and holes; they are
// the caller's.
func (s *Stored) Tree(ctx context.Context) (*image.Tree, error) { return nil, notYet("read a tree") }

// Section reads a section into a pointer to what it was written from, with
// files like [Stored.Tree]. NotFound if there is none of that name.
func (s *Stored) Section(ctx context.Context, name string, into any) error {
	return notYet("read a section")
}

// Run is a run of adjacent pages.
type Run struct {
	Addr uint64
	// Data are the pages' contents; nil for pages of zeros, which matter only
	// in mappings of files. It is valid until the next call.
	Data []byte
	// Len is the length in bytes.
	Len uint64
}

// PIDs are the processes that have private memory, sorted.
func (s *Stored) PIDs() []int { return nil }

// Pages calls visit for all own pages of a process, by address. Chunks are read
// and decompressed ahead by several goroutines; visit is called by one.
func (s *Stored) Pages(ctx context.Context, pid int, visit func(Run) error) error {
	return notYet("read pages")
}

// RestoreUpper makes the files in an empty directory, an upper's: every name,
// link, owner, time, attribute and byte as it was captured, owners as they are
// inside. The directory itself gets the attributes of the captured one.
func (s *Stored) RestoreUpper(ctx context.Context, dir int) error { return notYet("restore files") }

// Close ends the lease.
func (s *Stored) Close() error { return nil }
