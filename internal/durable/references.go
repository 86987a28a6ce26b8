package durable

import (
	"fmt"

	"github.com/sandtree/sandtree/internal/durable/cbor"
	"github.com/sandtree/sandtree/internal/durable/chunk"
	"github.com/sandtree/sandtree/internal/durable/content"
	"github.com/sandtree/sandtree/internal/durable/envelope"
	"github.com/sandtree/sandtree/internal/durable/upper"
)

// references visits what a record refers to.
type references struct {
	// enter is asked for each chunk that refers to others, and each value, once
	// for each reference: where it returns false they are left out. part names
	// what kind of chunk it is.
	enter func(part string, id chunk.ID) bool
	// chunk is called for every chunk, with its length as the reference states
	// it; 0 if it states none.
	chunk func(id chunk.ID, length int) error
}

func (r *record) walk(g content.Getter, v references) error {
	if r.Tree != nil {
		if err := v.value(g, "processes", *r.Tree); err != nil {
			return err
		}
	}
	for name, c := range r.Sections {
		if err := v.value(g, "section "+name, c); err != nil {
			return err
		}
	}
	for i := range r.Memory {
		m := &r.Memory[i]
		for _, t := range m.Tables {
			if err := v.chunk(t.ID, 0); err != nil {
				return err
			}
		}
		err := m.Chunks(g, func(id chunk.ID) bool { return v.enter("table", id) }, v.chunk)
		if err != nil {
			return fmt.Errorf("memory of process %d: %w", m.PID, err)
		}
	}
	if r.Upper == nil {
		return nil
	}
	for _, id := range r.Upper.Segments {
		if err := v.chunk(id, 0); err != nil {
			return err
		}
	}
	err := r.Upper.Each(g, func(id chunk.ID) bool { return v.enter("segment", id) }, func(e *upper.Entry) error {
		for _, c := range e.Contents() {
			if err := v.content(g, c); err != nil {
				return fmt.Errorf("file %q: %w", e.Name, err)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("files: %w", err)
	}
	return nil
}

// value visits an envelope and the files in it.
func (v references) value(g content.Getter, what string, c content.Content) error {
	b, err := cbor.Marshal(c)
	if err != nil {
		return err
	}
	if err := v.content(g, &c); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if !v.enter("value", chunk.Sum(b)) {
		return nil
	}
	files, err := envelope.Contents(g, c)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	for i := range files {
		if err := v.content(g, &files[i]); err != nil {
			return fmt.Errorf("%s, file %d: %w", what, i, err)
		}
	}
	return nil
}

func (v references) content(g content.Getter, c *content.Content) error {
	for _, id := range c.Lists {
		if err := v.chunk(id, 0); err != nil {
			return err
		}
	}
	return c.Each(g, func(id chunk.ID) bool { return v.enter("list", id) }, func(e content.Extent) error {
		return v.chunk(e.ID, int(e.Len))
	})
}
