package engine

import (
	"time"

	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// checkpoint is what a node of the tree owns: files, processes and memory of
// one instant.
type checkpoint struct {
	family    *family
	box       string
	created   time.Time
	snapshot  string // id of its files in the store
	tree      *image.Tree
	zygotes   map[int]*sharedZygote // by lineage
	sessions  []*session            // that ran, as they were
	shm       *shm
	setuid    bool
	resources control.Resources
	hostname  string
	report    control.Checkpoint
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
		c.family.log.Error("remove the files of a checkpoint", "checkpoint", c.report.ID, "error", err)
	}
}
