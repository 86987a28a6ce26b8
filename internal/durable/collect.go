package durable

import (
	"context"
	"fmt"

	"github.com/sandtree/sandtree/internal/durable/chunk"
	"github.com/sandtree/sandtree/internal/durable/chunkstore"
	"github.com/sandtree/sandtree/internal/durable/disk"
	"github.com/sandtree/sandtree/internal/fault"
)

// Collected says what [Repository.Collect] did: how many packs it removed and
// wrote anew, by how many bytes the repository became smaller, and how many wait
// for leases to end.
type Collected = chunkstore.Collected

// Collect frees chunks that no record refers to. It may run beside writes and
// reads: what they rely on is kept until a later call. Only one runs at a time,
// another is refused with Conflict. If a record cannot be read it frees nothing,
// since what that refers to is not known.
func (r *Repository) Collect(ctx context.Context) (Collected, error) {
	// A record whose removal is not durable may come back after a crash, and
	// must find its chunks.
	if err := disk.SyncDir(r.path(recordsDir)); err != nil {
		return Collected{}, disk.Errorf("collect: %w", err)
	}
	m := &marking{r: r, records: map[string]bool{}, entered: map[reference]bool{}}
	return r.chunks.Collect(ctx, m.mark)
}

// reference is a chunk that refers to others, as one kind of them: the same
// bytes may also be content, which refers to nothing.
type reference struct {
	part string
	id   chunk.ID
}

// marking finds what records need. What it has been through once it does not go
// through again: records share most.
type marking struct {
	r       *Repository
	records map[string]bool
	entered map[reference]bool
}

func (m *marking) mark(ctx context.Context, live chunkstore.Live) error {
	ids, err := m.r.ids()
	if err != nil {
		return err
	}
	// Records first, packs then: what a record refers to was there before it.
	if err := m.r.chunks.Refresh(); err != nil {
		return err
	}
	for _, id := range ids {
		if err := ctx.Err(); err != nil {
			return fault.New(fault.Canceled, "%w", err)
		}
		if m.records[id] {
			continue
		}
		rec, err := m.r.load(id)
		if fault.Is(err, fault.NotFound) {
			continue
		}
		if err != nil {
			return err
		}
		err = rec.walk(m.r.chunks, references{
			enter: func(part string, id chunk.ID) bool {
				ref := reference{part, id}
				first := !m.entered[ref]
				m.entered[ref] = true
				return first
			},
			chunk: func(id chunk.ID, _ int) error {
				live[id] = struct{}{}
				return nil
			},
		})
		if err != nil {
			return fmt.Errorf("record %s: %w", id, err)
		}
		m.records[id] = true
	}
	return nil
}
