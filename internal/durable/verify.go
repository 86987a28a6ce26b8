package durable

import (
	"context"
	"fmt"
	"slices"

	"github.com/sandtree/sandtree/internal/durable/chunk"
	"github.com/sandtree/sandtree/internal/durable/content"
	"github.com/sandtree/sandtree/internal/durable/envelope"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/process/image"
)

// Problem is something that [Repository.Verify] found broken.
type Problem struct {
	// Record is the record that needs it; empty if that is not known.
	Record string
	// What is the broken thing, with the reason.
	What string
}

// maxProblems is how many problems of one record are told.
const maxProblems = 100

// Verify reads everything that a record refers to (all records, if none is
// named), compares every checksum and follows every reference. It returns
// what is broken; the error says why it could not go on.
func (r *Repository) Verify(ctx context.Context, ids ...string) ([]Problem, error) {
	l, err := r.chunks.Lease()
	if err != nil {
		return nil, err
	}
	defer func() { _ = l.Release() }()
	var problems []Problem
	if len(ids) == 0 {
		if ids, err = r.ids(); err != nil {
			return nil, err
		}
		if err := r.chunks.Refresh(); err != nil {
			return nil, err
		}
		for name, err := range r.chunks.Corrupt() {
			problems = append(problems, Problem{What: fmt.Sprintf("pack %s: %v", name, err)})
		}
	}
	v := newVerification(r.chunks)
	for _, id := range ids {
		rec, err := r.load(id)
		if fault.Is(err, fault.NotFound) && len(ids) > 1 {
			continue // removed just now
		}
		if fault.Is(err, fault.NotFound) || fault.Is(err, fault.Invalid) {
			return nil, err
		}
		if err != nil {
			problems = append(problems, Problem{id, err.Error()})
			continue
		}
		found, err := v.record(ctx, rec)
		if err != nil {
			return nil, err
		}
		problems = append(problems, found...)
	}
	return problems, nil
}

// verification reads chunks once each and remembers how they were.
type verification struct {
	g       content.Getter
	lengths map[chunk.ID]int
	bad     map[chunk.ID]error
	buf     []byte
}

func newVerification(g content.Getter) *verification {
	return &verification{g: g, lengths: map[chunk.ID]int{}, bad: map[chunk.ID]error{}}
}

// chunk reads a chunk that a reference says to be of a length, or 0.
func (v *verification) chunk(id chunk.ID, length int) error {
	if err := v.bad[id]; err != nil {
		return err
	}
	have, known := v.lengths[id]
	if !known {
		var err error
		if v.buf, err = v.g.Append(v.buf[:0], id); err != nil {
			v.bad[id] = err
			return err
		}
		have = len(v.buf)
		v.lengths[id] = have
	}
	if length != 0 && length != have {
		return fmt.Errorf("%w %s: %d bytes, where %d are referred to", chunk.ErrCorrupt, id, have, length)
	}
	return nil
}

// record goes through all that a record refers to.
func (v *verification) record(ctx context.Context, rec *record) (out []Problem, err error) {
	problem := func(err error) {
		p := Problem{rec.Info.ID, err.Error()}
		if len(out) < maxProblems && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	err = rec.walk(v.g, references{
		enter: func(string, chunk.ID) bool { return true },
		chunk: func(id chunk.ID, length int) error {
			if err := ctx.Err(); err != nil {
				return fault.New(fault.Canceled, "verify: %w", err)
			}
			if err := v.chunk(id, length); err != nil {
				problem(err) // and go on with the others
			}
			return nil
		},
	})
	if fault.Is(err, fault.Canceled) {
		return nil, err
	}
	if err != nil {
		problem(err)
	}
	if err := v.counts(rec); err != nil {
		problem(err)
	}
	return out, nil
}

// counts compares what a record says of itself with what it has.
func (v *verification) counts(rec *record) error {
	var memory, files int64
	for i := range rec.Memory {
		n, err := rec.Memory[i].Measure(v.g)
		if err != nil {
			return err
		}
		if n != rec.Memory[i].Bytes {
			return fmt.Errorf("%w: process %d has %d bytes of memory, not %d", errCorrupt, rec.Memory[i].PID, n, rec.Memory[i].Bytes)
		}
		memory += n
	}
	values := []content.Content{}
	if rec.Tree != nil {
		values = append(values, *rec.Tree)
	}
	for _, c := range rec.Sections {
		values = append(values, c)
	}
	for _, c := range values {
		contents, err := envelope.Contents(v.g, c)
		if err != nil {
			return err
		}
		for i := range contents {
			memory += contents[i].Bytes()
		}
	}
	if rec.Upper != nil {
		entries, n, err := rec.Upper.Measure(v.g)
		if err != nil {
			return fmt.Errorf("files: %w", err)
		}
		if entries != rec.Upper.Entries || n != rec.Upper.Bytes {
			return fmt.Errorf("%w: it has %d files with %d bytes, not %d with %d", errCorrupt, entries, n, rec.Upper.Entries, rec.Upper.Bytes)
		}
		files = n
	}
	processes := 0
	if rec.Tree != nil {
		n, err := envelope.Check[*image.Tree](v.g, *rec.Tree)
		if err != nil {
			return fmt.Errorf("processes: %w", readable(rec.Info.Writer, err))
		}
		processes = len(n.Processes)
	}
	if memory != rec.Info.MemoryBytes || files != rec.Info.FileBytes || processes != rec.Info.Processes {
		return fmt.Errorf("%w: it says %d processes with %d bytes, and %d bytes of files, and has %d, %d and %d",
			errCorrupt, rec.Info.Processes, rec.Info.MemoryBytes, rec.Info.FileBytes, processes, memory, files)
	}
	return nil
}
