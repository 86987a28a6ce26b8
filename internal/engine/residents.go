package engine

import (
	"container/list"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// residents are the checkpoints that are in memory, by their last use, with what
// that costs. Its lock is the innermost.
type residents struct {
	account *control.Account // where others see what it costs

	mu    sync.Mutex
	order list.List // of *checkpoint, the one used longest ago first
	bytes int64
}

// residence is a checkpoint's place among them; guarded by their lock.
type residence struct {
	element *list.Element // nil: it is not in memory
	bytes   int64
	used    int64 // nanoseconds since 1970
}

// tell lets others see what there is. r.mu is held.
func (r *residents) tell() {
	oldest := int64(control.Never)
	if x := r.order.Front(); x != nil {
		oldest = x.Value.(*checkpoint).residence.used
	}
	r.account.Set(r.bytes, oldest)
}

func (r *residents) add(c *checkpoint, bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.residence.element == nil {
		c.residence = residence{r.order.PushBack(c), bytes, time.Now().UnixNano()}
		r.bytes += bytes
		r.tell()
	}
}

func (r *residents) remove(c *checkpoint) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if x := c.residence; x.element != nil {
		r.order.Remove(x.element)
		r.bytes -= x.bytes
		c.residence = residence{}
		r.tell()
	}
}

// touch says that a checkpoint is used.
func (r *residents) touch(c *checkpoint) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if x := c.residence.element; x != nil {
		r.order.MoveToBack(x)
		c.residence.used = time.Now().UnixNano()
		r.tell()
	}
}

func (r *residents) total() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.bytes
}

// of is what one checkpoint costs; 0: it is not in memory.
func (r *residents) of(c *checkpoint) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return c.residence.bytes
}

// lastUse is when a checkpoint was used, and whether it is in memory.
func (r *residents) lastUse(c *checkpoint) (nanos int64, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return c.residence.used, c.residence.element != nil
}

// all lists them, the one used longest ago first.
func (r *residents) all() (out []*checkpoint) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for x := r.order.Front(); x != nil; x = x.Next() {
		out = append(out, x.Value.(*checkpoint))
	}
	return out
}

// processBytes is about what a zygote costs beside its pages and page tables: a
// process, its stack in the kernel, and its mappings.
const processBytes = 96 << 10

// weigh is what a checkpoint costs in memory, about, of whose pages so many bytes
// are its own. It is held for use, or nobody else has it yet.
func (c *checkpoint) weigh(pages int64) int64 {
	n := pages
	for _, z := range c.zygotes {
		n += processBytes + z.Tables()
	}
	for _, s := range c.tree.Shared {
		n += heldBy(s.FD)
	}
	if c.files != nil {
		n += c.files.weigh()
	}
	for _, f := range c.tree.Files {
		if n += int64(len(f.Content)); f.Blob != nil {
			n += heldBy(int(f.Blob.File.Fd()))
		}
	}
	return n
}

// heldBy is what a file in memory takes: one with holes is larger than that.
func heldBy(fd int) int64 {
	var st unix.Stat_t
	if unix.Fstat(fd, &st) != nil {
		return 0
	}
	return st.Blocks * 512
}
