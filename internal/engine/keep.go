package engine

import (
	"context"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/durable"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/process"
	"github.com/sandtree/sandtree/internal/process/image"
	worker "github.com/sandtree/sandtree/internal/worker/control"
)

// changes are what a capture found changed since the checkpoint that the body
// descends from: what of it has to be written.
type changes struct {
	parent string // that checkpoint; empty: none
	pids   map[int]*change
}

type change struct {
	full                  bool
	mapped, gone, changed []durable.Span
}

// changesOf keeps of a capture's deltas what does not need their pages.
func changesOf(c *process.Capture, parent string) *changes {
	out := &changes{parent: parent, pids: make(map[int]*change, len(c.Deltas))}
	for pid, d := range c.Deltas {
		x := &change{full: d.Full}
		for i := range d.VMAs {
			v := &d.VMAs[i]
			if v.Shared || v.Kind == image.VDSO {
				continue
			}
			s := durable.Span{Start: v.Start, End: v.End}
			x.mapped = append(x.mapped, s)
			if v.Fresh {
				x.gone = append(x.gone, s)
			}
		}
		for _, r := range d.Runs {
			s := durable.Span{Start: r.Start, End: r.End}
			if r.Data == nil && r.From == 0 {
				x.gone = append(x.gone, s)
			} else {
				x.changed = append(x.changed, s)
			}
		}
		x.mapped, x.gone, x.changed = joined(x.mapped), joined(x.gone), joined(x.changed)
		out.pids[pid] = x
	}
	return out
}

// joined sorts spans and joins those that touch.
func joined(in []durable.Span) []durable.Span {
	slices.SortFunc(in, func(a, b durable.Span) int {
		switch {
		case a.Start < b.Start:
			return -1
		case a.Start > b.Start:
			return 1
		}
		return 0
	})
	out := in[:0]
	for _, s := range in {
		if n := len(out); n > 0 && s.Start <= out[n-1].End {
			out[n-1].End = max(out[n-1].End, s.End)
		} else {
			out = append(out, s)
		}
	}
	return slices.Clip(out)
}

// write has a worker make the checkpoint durable. It returns what that added to
// the disk, in bytes. The checkpoint is made, and in use by the caller.
func (c *checkpoint) write(ctx context.Context, w *worker.Client) (int64, error) {
	if err := c.acquire(ctx); err != nil {
		return 0, err
	}
	defer c.release()
	k, closeAll, err := c.packed()
	defer closeAll()
	if err != nil {
		return 0, err
	}
	k.Awaited = c.owner.awaited.Load() > 0
	info, err := w.Write(ctx, k)
	if fault.Is(err, fault.NotFound) && k.Parent != "" {
		// The parent is not durable, or not any more: all of it, then.
		if err := c.whole(&k); err != nil {
			return 0, err
		}
		info, err = w.Write(ctx, k)
	}
	if fault.Is(err, fault.Exists) { // an answer that was lost
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return info.NewBytes, nil
}

// packed is the checkpoint as a worker takes it. closeAll closes the files that
// were opened for it, and is there after an error, too.
func (c *checkpoint) packed() (k worker.Checkpoint, closeAll func(), err error) {
	var files []*os.File
	closeAll = func() {
		for _, f := range files {
			_ = f.Close()
		}
	}
	keep := func(f *os.File, err error) (*os.File, error) {
		if err == nil {
			files = append(files, f)
		}
		return f, err
	}
	r := c.described()
	k = worker.Checkpoint{ID: c.id, Sandbox: c.owner.id, Name: r.Name, Created: c.created, Tree: c.tree}
	if k.Upper, err = keep(c.family.store.Content(c.snapshot)); err != nil {
		return k, closeAll, err
	}
	for _, line := range process.Lineages(c.tree) {
		z := c.zygotes[line.Key]
		if z == nil {
			continue
		}
		mem, err := keep(z.OpenMemory())
		if err != nil {
			return k, closeAll, err
		}
		for _, p := range line.Processes {
			if !z.Holds(p.PID) {
				continue
			}
			k.Memory = append(k.Memory, worker.Memory{PID: p.PID, Windows: z.Windows(p.PID), Source: mem})
		}
	}
	c.mu.Lock()
	x := c.changes
	c.mu.Unlock()
	if x == nil || x.parent == "" {
		err = c.whole(&k)
	} else {
		k.Parent = x.parent
		for i := range k.Memory {
			m := &k.Memory[i]
			if d := x.pids[m.PID]; d != nil {
				m.Full, m.Mapped, m.Gone, m.Changed = d.full, d.mapped, d.gone, d.changed
			}
		}
	}
	if err == nil {
		k.State, err = c.state(keep)
	}
	return k, closeAll, err
}

// whole makes it one that needs no parent: all pages that the processes have.
func (c *checkpoint) whole(k *worker.Checkpoint) error {
	k.Parent = ""
	holder := map[int]*sharedZygote{}
	for _, line := range process.Lineages(c.tree) {
		for _, p := range line.Processes {
			holder[p.PID] = c.zygotes[line.Key]
		}
	}
	for i := range k.Memory {
		m := &k.Memory[i]
		m.Full, m.Mapped, m.Gone, m.Changed = true, nil, nil, nil
		err := holder[m.PID].Own(m.PID, func(start, end uint64) { m.Changed = append(m.Changed, durable.Span{Start: start, End: end}) })
		if err != nil {
			return err
		}
		m.Changed = joined(m.Changed)
	}
	return nil
}

// state is what a record has beside files, processes and memory. keep notes
// files that are to be closed.
func (c *checkpoint) state(keep func(*os.File, error) (*os.File, error)) (s worker.State, err error) {
	s = worker.State{
		IDBase: c.family.idBase, Hostname: c.hostname, Setuid: c.setuid, Resources: c.resources, Report: c.described(),
	}
	for _, x := range c.sessions {
		s.Sessions = append(s.Sessions, worker.Session{Session: x.Session, StdinClosed: x.stdinClosed})
	}
	if s.Shm, err = c.files.shm.record(keep); err != nil {
		return s, err
	}
	if s.Dev, err = c.files.dev.record(keep); err != nil {
		return s, err
	}
	for _, line := range process.Lineages(c.tree) {
		z := c.zygotes[line.Key]
		if z == nil {
			continue
		}
		for _, p := range line.Processes {
			z.Guards(p.PID, func(start, end uint64) { s.Guards = append(s.Guards, worker.Guard{PID: p.PID, Start: start, End: end}) })
		}
	}
	s.Backings, err = c.backings(keep)
	return s, err
}

// backings are the files of private mappings that their path does not lead to
// in the snapshot: deleted ones, and those that a restored process has kept
// mapped while another file took the name.
func (c *checkpoint) backings(keep func(*os.File, error) (*os.File, error)) ([]worker.Backing, error) {
	type id struct{ dev, ino uint64 }
	known := map[id]*os.File{}
	var out []worker.Backing
	for _, line := range process.Lineages(c.tree) {
		z := c.zygotes[line.Key]
		if z == nil {
			continue
		}
		open, err := z.MappedFiles()
		if err != nil {
			return nil, err
		}
		for _, p := range line.Processes {
			for i := range p.Memory.VMAs {
				v := &p.Memory.VMAs[i]
				if v.Kind != image.FileBacked || v.Shared {
					continue
				}
				f, err := open(p.PID, v.Start)
				if err != nil {
					return nil, fmt.Errorf("file that process %d maps at %#x: %w", p.PID, v.Start, err)
				}
				var st unix.Stat_t
				if err := unix.Fstat(int(f.Fd()), &st); err != nil {
					_ = f.Close()
					return nil, err
				}
				if !v.Deleted && c.leadsTo(v, &st) {
					_ = f.Close()
					continue
				}
				if k := known[id{st.Dev, st.Ino}]; k != nil {
					_ = f.Close()
					f = k
				} else {
					known[id{st.Dev, st.Ino}] = f
					_, _ = keep(f, nil)
				}
				out = append(out, worker.Backing{PID: p.PID, Start: v.Start, File: f})
			}
		}
	}
	return out, nil
}

// leadsTo reports whether a mapping's path leads to its file in the snapshot.
func (c *checkpoint) leadsTo(v *image.VMA, mapped *unix.Stat_t) bool {
	_, f, err := c.family.store.Resolve(c.snapshot, v.Path)
	if err != nil {
		return false
	}
	defer f.Close()
	var st unix.Stat_t
	return unix.Fstat(int(f.Fd()), &st) == nil && st.Dev == mapped.Dev && st.Ino == mapped.Ino
}
