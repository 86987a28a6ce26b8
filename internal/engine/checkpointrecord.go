package engine

import (
	"sync"
	"time"

	"github.com/sandtree/sandtree/internal/process"
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/process/memory"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// checkpoint is what a node of the tree owns: files, processes and memory of
// one instant.
type checkpoint struct {
	family    *family
	box       string
	created   time.Time
	snapshot  string // id of its files in the store, and its own
	tree      *image.Tree
	zygotes   map[int]*sharedZygote // by lineage, once it is made
	sessions  []*session            // that ran, as they were
	shm       *shm
	setuid    bool
	resources control.Resources
	hostname  string

	made chan struct{} // closed when it is, or has failed

	mu     sync.Mutex // guards what follows
	report control.Checkpoint
	failed error
}

func newCheckpoint(f *family, b *box, id string) *checkpoint {
	return &checkpoint{
		family: f, box: b.id, created: time.Now(), snapshot: id,
		setuid: b.setuid, resources: b.resources, hostname: b.hostname,
		made: make(chan struct{}), report: control.Checkpoint{Memory: control.MemoryPending},
	}
}

// ready says that the checkpoint is made.
func (c *checkpoint) ready(steps *stages) {
	files, _ := c.family.store.Usage(c.snapshot) // told when it is known
	c.mu.Lock()
	c.report.FileBytes, c.report.StageNS, c.report.Memory = files, steps.ns, control.MemoryReady
	c.mu.Unlock()
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
		c.shm.close()
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

// Free gives back everything. Nobody uses it any more.
func (c *checkpoint) Free() {
	for _, z := range c.zygotes {
		z.release()
	}
	for _, s := range c.tree.Shared {
		_ = s.Close()
	}
	for _, f := range c.tree.Files {
		if f.Blob != nil {
			_ = f.Blob.Close()
		}
	}
	c.shm.close()
	if err := c.family.store.Remove(c.snapshot); err != nil {
		c.family.log.Error("remove the files of a checkpoint", "checkpoint", c.snapshot, "error", err)
	}
}
