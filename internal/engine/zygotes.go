package engine

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process"
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/process/memory"
)

// sharedZygote is a zygote with a count of who needs it.
type sharedZygote struct {
	*memory.Zygote
	users atomic.Int32
}

func share(z *memory.Zygote) *sharedZygote {
	s := &sharedZygote{Zygote: z}
	s.users.Store(1)
	return s
}

func (s *sharedZygote) hold() *sharedZygote {
	s.users.Add(1)
	return s
}

func (s *sharedZygote) release() {
	if s.users.Add(-1) == 0 {
		s.Kill()
	}
}

// updateZygotes brings the body's base zygotes up to date with a capture and
// returns forks of them for the checkpoint, if that is asked. Zygotes form a star:
// each checkpoint's is a fork of the base, never of another checkpoint's.
func (o *body) updateZygotes(c *process.Capture, snapshot string, forks bool) (_ map[int]*sharedZygote, err error) {
	out := map[int]*sharedZygote{}
	defer func() {
		if err != nil {
			for _, z := range out {
				z.release()
			}
		}
	}()
	o.takeOver()
	open := o.backing(c, snapshot)
	current := map[int]bool{}
	errs := make([]error, len(c.Lineages))
	var mu sync.Mutex // guards out
	var wg sync.WaitGroup
	turns := make(chan struct{}, runtime.NumCPU())
	for i, line := range c.Lineages {
		current[line.Key] = true
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			z, err := o.updateZygote(c, line, open, forks)
			if errs[i] = err; z == nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			out[line.Key] = z
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return out, err
	}
	for key, z := range o.bases { // lineages that have ended
		if !current[key] {
			z.Kill()
			delete(o.bases, key)
		}
	}
	o.dropAncestors(current)
	return out, nil
}

// updateZygote does so for one lineage. It returns nil if no fork is asked for.
func (o *body) updateZygote(c *process.Capture, line *process.Lineage, open memory.Backing, fork bool) (*sharedZygote, error) {
	base, err := o.base(line.Key)
	if err != nil {
		return nil, err
	}
	var deltas []*memory.Delta
	for _, p := range line.Processes {
		if d := c.Deltas[p.PID]; d != nil {
			deltas = append(deltas, d)
		}
	}
	base.at = nil
	if err := base.Update(deltas, open); err != nil || !fork {
		return nil, err
	}
	z, err := base.Fork()
	if err != nil {
		return nil, err
	}
	base.at = share(z)
	return base.at, nil
}

// backing opens the files of new mappings: a layer's file, or the snapshot's,
// never one of the live overlay.
func (o *body) backing(c *process.Capture, snapshot string) memory.Backing {
	return func(pid int, v *image.VMA) (int, error) {
		if fd, ok := c.Backing(pid, v); ok {
			return o.keep(v, fd)
		}
		_, f, err := o.family.store.Resolve(snapshot, v.Path)
		if err != nil {
			return -1, fmt.Errorf("file mapped by process %d: %w", pid, err)
		}
		defer f.Close()
		return unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	}
}

// keep returns a descriptor for a mapped file that no path leads to. One that
// is still on the live overlay is copied.
func (o *body) keep(v *image.VMA, fd int) (int, error) {
	if v.Dev != o.device {
		return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return -1, fmt.Errorf("stat deleted file %s: %w", v.Path, err)
	}
	to, err := unix.MemfdCreate("deleted", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("memfd_create: %w", err)
	}
	if err = unix.Ftruncate(to, st.Size); err == nil {
		err = process.CopyData(to, fd, st.Size)
	}
	if err != nil {
		_ = unix.Close(to)
		return -1, fmt.Errorf("copy deleted file %s: %w", v.Path, err)
	}
	return to, nil
}
