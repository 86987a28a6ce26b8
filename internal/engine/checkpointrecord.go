package engine

import (
	"sync"
	"time"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/process"
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/process/memory"
	"github.com/sandtree/sandtree/internal/rootfs"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// checkpoint is what a node of the tree owns: files, processes and memory of
// one instant.
type checkpoint struct {
	family    *family
	id        string
	owner     *box
	created   time.Time
	setuid    bool
	resources control.Resources
	hostname  string
	quota     rootfs.Quota // of what is read from disk

	made    chan struct{} // closed when it is, or has failed
	need    func()        // has it made at once; nil: it is, or is about to be
	removed chan struct{} // closed when it has left the tree and that was asked for

	// use is held for reading by who needs what follows, see [checkpoint.acquire].
	// Without it, a checkpoint that is durable may be on disk alone.
	use      sync.RWMutex
	snapshot string                // id of its files in the store; empty: they are in the durable form alone
	tree     *image.Tree           // nil: it is not in memory
	zygotes  map[int]*sharedZygote // by lineage, once it is made
	sessions []*session            // that ran, as they were
	files    *memoryFiles
	loads    int // how often its files were read from disk

	residence residence // among the evictor's

	unexplained int // how often writing it failed for no reason that is known to pass; the keeper's lock guards it

	mu      sync.Mutex // guards what follows
	report  control.Checkpoint
	failed  error
	changes *changes      // what has to be written of it; nil: all
	refused bool          // it could not be made durable once
	keeping chan struct{} // closed when it is durable, or cannot be; nil: it is not meant to be
}

func newCheckpoint(f *family, b *box, id string) *checkpoint {
	return &checkpoint{
		family: f, owner: b, created: time.Now(), id: id, snapshot: id,
		setuid: b.setuid, resources: b.resources, hostname: b.hostname, quota: b.quota,
		made: make(chan struct{}), removed: make(chan struct{}), report: control.Checkpoint{Memory: control.MemoryPending},
	}
}

// onDisk is a checkpoint of an earlier supervisor.
func onDisk(f *family, b *box, r control.Checkpoint) *checkpoint {
	c := newCheckpoint(f, b, r.ID)
	c.created, c.snapshot, c.report = r.Created, "", r
	c.keeping = make(chan struct{})
	close(c.keeping)
	close(c.made)
	return c
}

// ready says that the checkpoint is made.
func (c *checkpoint) ready(steps *stages) {
	c.mu.Lock()
	c.report.StageNS, c.report.Memory = steps.ns, control.MemoryReady
	c.mu.Unlock()
	c.family.evictor.arrived(c, c.weigh(c.described().DirtyBytes))
	close(c.made)
}

// fail says that it could not be made.
func (c *checkpoint) fail(err error) {
	c.mu.Lock()
	c.failed = err
	c.mu.Unlock()
	close(c.made)
}

// await waits until the checkpoint is made. Who uses one that may be under way
// calls it first.
func (c *checkpoint) await() error {
	if c.need != nil {
		c.need()
	}
	<-c.made
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failed
}

func (c *checkpoint) described() control.Checkpoint {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.report
}

// discard gives back what a checkpoint that comes to nothing has made so far.
func (c *checkpoint) discard(capture *process.Capture) {
	if capture == nil {
		c.files.close()
		return
	}
	capture.Close()
	c.tree = capture.Tree
	c.Free()
}

// zygote is that of a lineage, or nil.
func (c *checkpoint) zygote(key int) *memory.Zygote {
	if z := c.zygotes[key]; z != nil {
		return z.Zygote
	}
	return nil
}

// zygoteOf is the zygote of a lineage, held, if the checkpoint has one and nobody
// is about to change that.
func (c *checkpoint) zygoteOf(key int) *sharedZygote {
	if !c.use.TryRLock() {
		return nil
	}
	defer c.use.RUnlock()
	if z := c.zygotes[key]; z != nil {
		return z.hold()
	}
	return nil
}

// replace puts a zygote, which it holds then, in the place of another that holds
// the same, unless somebody uses the checkpoint.
func (c *checkpoint) replace(key int, old, z *sharedZygote) bool {
	if !c.use.TryLock() {
		return false
	}
	defer c.use.Unlock()
	if c.zygotes[key] != old {
		return false
	}
	c.zygotes[key] = z
	old.release()
	return true
}

// loaded reports whether the checkpoint is in memory, or about to be.
func (c *checkpoint) loaded() bool { return c.described().Memory != control.MemoryNone }

// kept says that the checkpoint is durable, and what that added to the disk. It
// reports whether it had failed before.
func (c *checkpoint) kept(bytes int64) (atLast bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.report.Durable, c.report.DurableReason, c.report.DurableKind, c.report.DurableBytes = control.DurableYes, "", "", bytes
	c.changes = nil
	close(c.keeping)
	return c.refused
}

// notKept says why the checkpoint is not durable, and whether it will be tried
// again. It reports whether that is the first failure.
func (c *checkpoint) notKept(why error, again bool) (first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.report.Durable, c.report.DurableReason, c.report.DurableKind, c.report.DurableBytes = control.DurableFailed, why.Error(), fault.KindOf(why), 0
	if !again {
		c.changes = nil
	}
	first, c.refused = !c.refused, true
	close(c.keeping)
	return first
}

// Free gives back everything in memory. Nobody uses it any more.
func (c *checkpoint) Free() {
	c.use.Lock()
	defer c.use.Unlock()
	c.freeMemory()
	c.freeFiles()
}

// freeMemory gives back what is in memory; use is held.
func (c *checkpoint) freeMemory() {
	if c.tree == nil {
		return
	}
	c.family.evictor.all.remove(c)
	for _, z := range c.zygotes {
		z.release()
	}
	for _, s := range c.tree.Shared {
		if s.FD >= 0 {
			c.family.files.give(s.FD)
			s.FD = -1
		}
	}
	c.tree.Close()
	c.files.close()
	c.tree, c.zygotes, c.sessions, c.files = nil, nil, nil, nil
}

// freeFiles removes the files from the store; use is held.
func (c *checkpoint) freeFiles() {
	if c.snapshot == "" {
		return
	}
	if err := c.family.store.Remove(c.snapshot); err != nil {
		c.family.log.Error("remove the files of a checkpoint", "checkpoint", c.id, "error", err)
	}
	c.snapshot = ""
}
