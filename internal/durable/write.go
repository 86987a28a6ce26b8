package durable

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"github.com/sandtree/sandtree/internal/durable/chunkstore"
	"github.com/sandtree/sandtree/internal/durable/content"
	"github.com/sandtree/sandtree/internal/durable/disk"
	"github.com/sandtree/sandtree/internal/durable/envelope"
	"github.com/sandtree/sandtree/internal/durable/lease"
	"github.com/sandtree/sandtree/internal/durable/machine"
	"github.com/sandtree/sandtree/internal/durable/pages"
	"github.com/sandtree/sandtree/internal/durable/upper"
	"github.com/sandtree/sandtree/internal/failpoint"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/version"
)

// The steps of a write that can be made to fail, beside those of packs.
var (
	failStarted   = failpoint.New("durable.write.started")
	failGathered  = failpoint.New("durable.write.gathered")
	failWritten   = failpoint.New("durable.record.written")
	failPublished = failpoint.New("durable.record.published")
	failNamed     = failpoint.New("durable.record.named")
)

// Write keeps a checkpoint. It returns when the record is durable. An id that
// is taken is refused with Exists, a parent that is not there with NotFound
// (write a full one then), a full disk with Exhausted; after an error nothing
// of the checkpoint is left that counts.
func (r *Repository) Write(ctx context.Context, c Checkpoint) (Info, error) {
	info, err := r.write(ctx, c)
	if err != nil {
		return Info{}, disk.Errorf("keep checkpoint %s: %w", c.ID, err)
	}
	return info, nil
}

func (r *Repository) write(ctx context.Context, c Checkpoint) (info Info, err error) {
	if err := validID(c.ID); err != nil {
		return Info{}, err
	}
	if err := r.unused(c.ID); err != nil {
		return Info{}, err
	}
	l, err := r.chunks.Lease()
	if err != nil {
		return Info{}, err
	}
	defer func() { err = errors.Join(err, l.Release()) }()
	// With the lease, what the parent refers to stays.
	var parent *record
	if c.Parent != "" {
		if parent, err = r.load(c.Parent); err != nil {
			return Info{}, fmt.Errorf("parent: %w", err)
		}
	}
	s, err := r.chunks.Begin(ctx, l)
	if err != nil {
		return Info{}, err
	}
	defer s.Abort()
	if err := failStarted.Hit(); err != nil {
		return Info{}, err
	}
	rec, err := gather(ctx, s, c, parent)
	if err != nil {
		return Info{}, err
	}
	if err := failGathered.Hit(); err != nil {
		return Info{}, err
	}
	if err := r.publish(l, s, rec); err != nil {
		return Info{}, err
	}
	return rec.Info, nil
}

func (r *Repository) unused(id string) error {
	_, err := os.Lstat(r.path(recordsDir, id))
	switch {
	case err == nil:
		return fault.New(fault.Exists, "there is a record %s already", id)
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return nil
}

// gather puts everything into chunks.
func gather(ctx context.Context, s *chunkstore.Session, c Checkpoint, parent *record) (*record, error) {
	here, err := machine.Here()
	if err != nil {
		return nil, err
	}
	rec := &record{Info: Info{
		ID: c.ID, Parent: c.Parent, Sandbox: c.Sandbox, Name: c.Name, Created: c.Created.UTC(),
		Layers: slices.Clone(c.Layers), Machine: here, Writer: version.String(),
	}}
	if err := rec.gatherValues(s, c); err != nil {
		return nil, err
	}
	if err := rec.gatherMemory(ctx, s, c.Memory, parent); err != nil {
		return nil, err
	}
	if c.Upper >= 0 {
		var old *upper.Manifest
		if parent != nil {
			old = parent.Upper
		}
		m, read, err := upper.Capture(ctx, s, s, old, c.Upper)
		if err != nil {
			return nil, fmt.Errorf("files: %w", err)
		}
		rec.Upper = &m
		rec.Info.FileBytes = m.Bytes
		rec.Info.ReadBytes += read
	}
	return rec, nil
}

// gatherValues keeps the tree and the sections. They are read whole: what did
// not change is the same chunks.
func (r *record) gatherValues(p content.Putter, c Checkpoint) error {
	if c.Tree != nil {
		v, read, err := envelope.Write(p, c.Tree)
		if err != nil {
			return fmt.Errorf("processes: %w", err)
		}
		r.Tree = &v
		r.Info.Processes = len(c.Tree.Processes)
		r.Info.ReadBytes += read
		r.Info.MemoryBytes += read
	}
	for name, section := range c.Sections {
		v, read, err := envelope.Write(p, section)
		if err != nil {
			return fmt.Errorf("section %s: %w", name, err)
		}
		if r.Sections == nil {
			r.Sections = map[string]content.Content{}
		}
		r.Sections[name] = v
		r.Info.ReadBytes += read
		r.Info.MemoryBytes += read
	}
	return nil
}

func (r *record) gatherMemory(ctx context.Context, s *chunkstore.Session, all []Pages, parent *record) error {
	all = slices.SortedFunc(slices.Values(all), func(a, b Pages) int { return a.PID - b.PID })
	for i := range all {
		p := &all[i]
		if p.PID < 0 || i > 0 && all[i-1].PID == p.PID {
			return fault.New(fault.Invalid, "memory of process %d, twice or of none", p.PID)
		}
		change, err := p.change()
		if err != nil {
			return err
		}
		var old *pages.Memory
		if !p.Full {
			old = parent.memoryOf(p.PID)
		}
		if old == nil && !p.Full {
			return fault.New(fault.Invalid, "the parent has no memory of process %d that a difference could be against", p.PID)
		}
		m, read, err := pages.Write(ctx, s, s, old, change)
		if err != nil {
			return err
		}
		r.Memory = append(r.Memory, m)
		r.Info.MemoryBytes += m.Bytes
		r.Info.ReadBytes += read
	}
	return nil
}

// change is the difference as package pages takes it.
func (p *Pages) change() (c pages.Change, err error) {
	c.PID, c.Source = p.PID, p.Source
	for _, s := range []struct {
		from []Span
		to   *pages.Spans
	}{{p.Mapped, &c.Mapped}, {p.Gone, &c.Gone}, {p.Changed, &c.Changed}} {
		if *s.to, err = pages.NewSpans(s.from); err != nil {
			return c, fmt.Errorf("process %d: %w", p.PID, err)
		}
	}
	if c.Source == nil {
		if len(c.Changed) > 0 {
			return c, fault.New(fault.Invalid, "pages of process %d changed and cannot be read", p.PID)
		}
		c.Source = noPages{}
	}
	return c, nil
}

type noPages struct{}

func (noPages) ReadAt([]byte, int64) (int, error) { return 0, io.EOF }

// publish makes the chunks durable, and then the record.
func (r *Repository) publish(l *lease.Lease, s *chunkstore.Session, rec *record) error {
	if err := s.Flush(); err != nil {
		return err
	}
	stats, err := s.Commit()
	if err != nil {
		return err
	}
	rec.Info.NewBytes = stats.Bytes
	b, err := rec.encode()
	if err != nil {
		return err
	}
	return r.publishRecord(l, rec.Info.ID, b)
}

// publishRecord makes a record appear. All that it refers to is durable.
func (r *Repository) publishRecord(l *lease.Lease, id string, b []byte) (err error) {
	tmp := r.chunks.Temp(l, "record-"+id)
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(tmp) }() // gone, if it was published
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close(), failWritten.Hit()); err != nil {
		return err
	}
	if err := disk.Publish(tmp, r.path(recordsDir, id)); err != nil {
		return err
	}
	err = failPublished.Hit()
	if err == nil {
		err = disk.SyncDir(r.path(recordsDir))
	}
	if err == nil {
		err = failNamed.Hit()
	}
	if err != nil { // it may be durable or not: it must not be listed after an error
		return errors.Join(err, os.Remove(r.path(recordsDir, id)), disk.SyncDir(r.path(recordsDir)))
	}
	return nil
}
