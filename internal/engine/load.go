package engine

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/failpoint"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/xattr"
	"github.com/sandtree/sandtree/internal/process"
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/process/memory"
	"github.com/sandtree/sandtree/internal/supervisor/control"
	worker "github.com/sandtree/sandtree/internal/worker/control"
)

// The steps of reading a durable checkpoint that can be made to fail.
var (
	failLoadRead    = failpoint.New("engine.load.read")
	failLoadFiles   = failpoint.New("engine.load.files")
	failLoadZygotes = failpoint.New("engine.load.zygotes")
)

// acquire makes sure that the checkpoint is in memory, and keeps it there until
// release is called. One that is on disk alone is read from there, once however
// many ask for it.
func (c *checkpoint) acquire(ctx context.Context) error {
	if err := c.await(); err != nil {
		return err
	}
	for {
		c.use.RLock()
		if c.tree != nil {
			c.family.evictor.all.touch(c)
			return nil
		}
		c.use.RUnlock()
		if err := c.load(ctx); err != nil {
			return err
		}
	}
}

func (c *checkpoint) release() { c.use.RUnlock() }

// load reads a checkpoint that is on disk alone.
func (c *checkpoint) load(ctx context.Context) error {
	c.use.Lock()
	defer c.use.Unlock()
	if c.tree != nil {
		return nil // another one was faster
	}
	w, err := c.family.keeper.worker(ctx)
	if err == nil {
		err = c.loadBy(ctx, w)
	}
	if err != nil {
		return fault.New(fault.KindOf(err), "read checkpoint %s from disk: %w", c.id, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.report.Memory = control.MemoryReady
	return nil
}

func (c *checkpoint) loadBy(ctx context.Context, w *worker.Client) (err error) {
	s, err := w.Read(ctx, c.id)
	if err != nil {
		return err
	}
	defer func() {
		if s.Pages != nil {
			_ = s.Pages.Close()
		}
		for _, b := range s.State.Backings {
			_ = b.File.Close()
		}
	}()
	snapshot, kept := c.snapshot, c.snapshot != ""
	if !kept {
		c.loads++
		snapshot = fmt.Sprintf("%s.%d", c.id, c.loads) // an id is never used again
	}
	zygotes := map[int]*sharedZygote{}
	if c.files, err = memoryFilesOf(&s.State); err != nil {
		s.Tree.Close()
		return err
	}
	defer func() {
		if err == nil {
			return
		}
		for _, z := range zygotes {
			z.release()
		}
		s.Tree.Close()
		c.files.close()
		c.files = nil
		if kept {
			return
		}
		if e := c.family.store.Remove(snapshot); e != nil && !fault.Is(e, fault.NotFound) {
			c.family.log.Error("remove the files of a checkpoint that could not be read", "checkpoint", c.id, "error", e)
		}
	}()
	if s.Tree == nil {
		return fault.New(fault.Invalid, "it has no processes")
	}
	shift(s.Tree, c.files, s.State.IDBase, c.family.idBase)
	if err := failLoadRead.Hit(); err != nil {
		return err
	}
	if !kept {
		if err := c.loadFiles(ctx, w, snapshot); err != nil {
			return err
		}
	}
	if err := failLoadFiles.Hit(); err != nil {
		return err
	}
	own, err := c.loadMemory(&s, snapshot, zygotes)
	if err != nil {
		return err
	}
	if err := failLoadZygotes.Hit(); err != nil {
		return err
	}
	c.sessions = nil
	for _, x := range s.State.Sessions {
		c.sessions = append(c.sessions, &session{Session: x.Session, stdinClosed: x.StdinClosed})
	}
	c.snapshot, c.zygotes, c.tree = snapshot, zygotes, s.Tree
	c.family.evictor.arrived(c, c.weigh(own))
	return nil
}

// loadFiles makes the snapshot anew.
func (c *checkpoint) loadFiles(ctx context.Context, w *worker.Client, snapshot string) (err error) {
	st, upper := c.family.store, snapshot+".new"
	if err := st.CreateUpper(upper, 0); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Remove(upper)) }()
	dir, err := st.Content(upper)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := w.Unpack(ctx, c.id, dir); err != nil {
		return err
	}
	if err := c.countFiles(upper); err != nil {
		return err
	}
	return st.Snapshot(upper, snapshot)
}

// countedOnce is how much may count in a quota for files from disk to count too.
const countedOnce = 8 << 20

// countFiles has files that were read from disk count in the sandbox's quota, now
// that they are there: a sandbox that has filled its disk must come back. What
// checkpoints had in common they have each for themselves then, so that only
// those count that are read first; else a sandbox that goes back to an older one would
// have no room to write.
func (c *checkpoint) countFiles(upper string) error {
	if c.quota == 0 {
		return nil
	}
	u, err := c.family.store.QuotaUsage(c.quota)
	if err != nil || u.Limit > 0 && u.Bytes > countedOnce {
		return err
	}
	return c.family.store.Recount(upper, c.quota)
}

// loadMemory makes the zygotes anew. It returns how many bytes of pages they have.
func (c *checkpoint) loadMemory(s *worker.Stored, snapshot string, zygotes map[int]*sharedZygote) (int64, error) {
	st, err := s.Pages.Stat()
	if err != nil {
		return 0, err
	}
	var content []byte
	if st.Size() > 0 {
		if content, err = unix.Mmap(int(s.Pages.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_SHARED); err != nil {
			return 0, fmt.Errorf("map the pages: %w", err)
		}
		defer func() { _ = unix.Munmap(content) }()
	}
	pages, err := newStoredPages(content, s.Runs)
	if err != nil {
		return 0, err
	}
	guards := map[int][]memory.Run{}
	for _, g := range s.State.Guards {
		guards[g.PID] = append(guards[g.PID], memory.Run{Start: g.Start, End: g.End, Guard: true})
	}
	type key struct {
		pid   int
		start uint64
	}
	backings := map[key]*os.File{}
	for _, b := range s.State.Backings {
		backings[key{b.PID, b.Start}] = b.File
	}
	open := func(pid int, v *image.VMA) (int, error) {
		if f := backings[key{pid, v.Start}]; f != nil {
			return unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		}
		_, f, err := c.family.store.Resolve(snapshot, v.Path)
		if err != nil {
			return -1, fmt.Errorf("file mapped by process %d: %w", pid, err)
		}
		defer f.Close()
		return unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	}
	for _, line := range process.Lineages(s.Tree) {
		z, err := memory.NewZygote(c.family.seed.Server())
		if err != nil {
			return 0, err
		}
		zygotes[line.Key] = share(z)
		var deltas []*memory.Delta
		ls := lenders{}
		for _, p := range line.Processes {
			if p.State == image.Zombie {
				continue
			}
			runs := append(pages.of(p.PID, ls), guards[p.PID]...)
			deltas = append(deltas, &memory.Delta{PID: p.PID, VMAs: p.Memory.VMAs, Runs: runs, Full: true})
		}
		if err := z.Update(deltas, open); err != nil {
			return 0, err
		}
	}
	return pages.used, nil
}

// unload leaves the checkpoint on disk alone, if it is there and nobody uses it.
func (c *checkpoint) unload() bool {
	if c.described().Durable != control.DurableYes || !c.use.TryLock() {
		return false
	}
	defer c.use.Unlock()
	c.freeMemory()
	c.freeFiles()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.report.Memory = control.MemoryNone
	return true
}

// shift renumbers owners, which a record has as the host had them that wrote
// it.
func shift(t *image.Tree, m *memoryFiles, from, to uint32) {
	if from == to {
		return
	}
	other := func(id uint32) uint32 {
		if id >= from && id-from < idsOfFamily {
			return id - from + to
		}
		return id
	}
	one := func(id *uint32) { *id = other(*id) }
	for _, f := range t.Files {
		one(&f.UID)
		one(&f.GID)
		f.Attributes = xattr.Renumber(f.Attributes, other, other)
	}
	for _, x := range t.Terminals {
		one(&x.UID)
		one(&x.GID)
	}
	for _, s := range m.all() {
		for i := range s.entries {
			one(&s.entries[i].stat.Uid)
			one(&s.entries[i].stat.Gid)
			s.entries[i].attributes = xattr.Renumber(s.entries[i].attributes, other, other)
		}
	}
}

// idsOfFamily is how many ids a family has.
const idsOfFamily = 1 << 16
