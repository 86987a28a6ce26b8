package durable

import (
	"context"

	"github.com/sandtree/sandtree/internal/durable/disk"
	"github.com/sandtree/sandtree/internal/durable/envelope"
	"github.com/sandtree/sandtree/internal/durable/lease"
	"github.com/sandtree/sandtree/internal/durable/pages"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/process/image"
)

// Stored is an open record. It holds a lease: the record can be read until it
// is closed, also if it is removed meanwhile.
type Stored struct {
	repository *Repository
	record     *record
	lease      *lease.Lease
}

// Get opens a record. One that a newer version wrote, with what this one does
// not know, is refused with Unsupported.
func (r *Repository) Get(ctx context.Context, id string) (*Stored, error) {
	if err := ctx.Err(); err != nil {
		return nil, fault.New(fault.Canceled, "read record %s: %w", id, err)
	}
	l, err := r.chunks.Lease()
	if err != nil {
		return nil, err
	}
	rec, err := r.load(id)
	if err != nil {
		_ = l.Release()
		return nil, err
	}
	return &Stored{r, rec, l}, nil
}

// Info describes the record.
func (s *Stored) Info() Info { return s.record.Info }

// failed says which record an error is about.
func (s *Stored) failed(what string, err error) error {
	if err == nil {
		return nil
	}
	return disk.Errorf("read %s of record %s: %w", what, s.record.Info.ID, readable(s.record.Info.Writer, err))
}

// Tree returns the image of the processes, nil if the checkpoint has none. Files
// in it are new anonymous ones (memfd) with the same content and holes; they are
// the caller's.
func (s *Stored) Tree(ctx context.Context) (*image.Tree, error) {
	if s.record.Tree == nil {
		return nil, nil
	}
	var t *image.Tree
	if err := envelope.Read(ctx, s.repository.chunks, *s.record.Tree, &t); err != nil {
		return nil, s.failed("the processes", err)
	}
	return t, nil
}

// Section reads a section into a pointer to what it was written from, with
// files like [Stored.Tree]. NotFound if there is none of that name.
func (s *Stored) Section(ctx context.Context, name string, into any) error {
	c, ok := s.record.Sections[name]
	if !ok {
		return fault.New(fault.NotFound, "record %s has no section %q", s.record.Info.ID, name)
	}
	return s.failed("section "+name, envelope.Read(ctx, s.repository.chunks, c, into))
}

// Run is a run of adjacent pages. Its data are valid until the next one; pages of
// zeros, which have none, matter only in mappings of files.
type Run = pages.Run

// PIDs are the processes that have private memory, sorted.
func (s *Stored) PIDs() (pids []int) {
	for i := range s.record.Memory {
		pids = append(pids, s.record.Memory[i].PID)
	}
	return pids
}

// Pages calls visit for all own pages of a process, by address. Chunks are read
// and decompressed ahead by several goroutines; visit is called by one. An error
// of visit ends it and is returned as it is.
func (s *Stored) Pages(ctx context.Context, pid int, visit func(Run) error) error {
	m := s.record.memoryOf(pid)
	if m == nil {
		return fault.New(fault.NotFound, "record %s has no memory of process %d", s.record.Info.ID, pid)
	}
	var own error
	err := m.Read(ctx, s.repository.chunks, func(r Run) error {
		own = visit(r)
		return own
	})
	if own != nil {
		return own
	}
	return s.failed("memory", err)
}

// HasUpper reports whether the record has a file delta.
func (s *Stored) HasUpper() bool { return s.record.Upper != nil }

// RestoreUpper makes the files in an empty directory, an upper's: every name,
// link, owner, time, attribute and byte as it was captured, owners as they are
// inside. The directory itself gets the attributes of the captured one.
func (s *Stored) RestoreUpper(ctx context.Context, dir int) error {
	if s.record.Upper == nil {
		return fault.New(fault.NotFound, "record %s has no files", s.record.Info.ID)
	}
	return s.failed("files", s.record.Upper.Restore(ctx, s.repository.chunks, dir))
}

// Close ends the lease.
func (s *Stored) Close() error { return s.lease.Release() }
