package descriptor

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/acceptqueue"
	events "github.com/sandtree/sandtree/internal/linux/inotify"
	"github.com/sandtree/sandtree/internal/linux/sockdiag"
	"github.com/sandtree/sandtree/internal/process/image"
)

// Capturer captures descriptors. It keeps its buffers from one capture to the
// next and is for one thread at a time. The zero value is ready.
type Capturer struct {
	env   Env
	procs []Process

	descriptions []description
	tables       [][]image.Descriptor
	buckets      map[bucket]int // first description of each
	objects      map[inode]object
	systems      map[uint64]uint32 // st_dev to type of file system
	places       map[string]inode  // what is at a path; zero: nothing
	terminals    []terminal
	left         []*image.File // sessions' pipes that no process has any more
	saved        int64         // bytes of content, deleted files' and pipes'

	diag    *sockdiag.Conn // of the sandbox's network namespace
	unix    []sockdiag.Unix
	names   []socketName
	tcp     []sockdiag.Inet
	queued  []int           // of those, connections that wait in a socket that was examined
	ends    map[ends]int    // descriptions of connections
	early   map[int]uint32  // clients that were not accepted and have sent, with what their other end receives next
	sockets map[uint32]int  // descriptions of sockets by inode
	lost    map[string]bool // abstract names of ends that are gone, and whether all that they have sent can be sent before there is anything else
	// addresses are the descriptions as the kernel's queues name them; nil: not asked yet.
	addresses map[acceptqueue.File]int
	ids       *ids
	scratch   *events.Scratch // where unread events of inotify are made again, once there were any

	numbers []int
	text    []byte
}

// inode names an inode while something holds it.
type inode struct{ dev, ino uint64 }

// object is what stands for an inode in the image.
type object struct {
	number int // image.File.Object
	first  int // the description that carries the content
}

// Capture captures the descriptors of the given processes, which are all that
// live in the sandbox but its PID 1. An error of kind [fault.Uncapturable]
// names what cannot be kept, and nothing was touched.
//
// It runs in the frozen window: the caller has stopped every thread, and lets
// them go after it returns.
func (c *Capturer) Capture(in []Process, env Env) (*Result, error) {
	c.reset(in, env)
	defer c.release()
	for i := range in {
		if err := c.list(i); err != nil {
			return nil, err
		}
	}
	if err := c.listQueues(); err != nil {
		return nil, err
	}
	if err := c.gatherSockets(); err != nil {
		return nil, err
	}
	if err := c.examine(); err != nil {
		return nil, err
	}
	for i := range c.descriptions {
		d := &c.descriptions[i]
		if err := d.kind.read(c, d); err != nil {
			c.discard()
			return nil, err
		}
	}
	if err := c.readLeft(); err != nil {
		c.discard()
		return nil, err
	}
	if err := c.readTerminals(); err != nil {
		c.discard()
		return nil, err
	}
	return c.result(), nil
}

func (c *Capturer) reset(in []Process, env Env) {
	c.env, c.procs, c.saved = env, in, 0
	if c.env.MaxContent == 0 {
		c.env.MaxContent = DefaultMaxContent
	}
	c.descriptions, c.terminals, c.left = c.descriptions[:0], c.terminals[:0], nil
	c.tables = make([][]image.Descriptor, len(in))
	if c.buckets == nil {
		c.buckets, c.objects, c.systems = map[bucket]int{}, map[inode]object{}, map[uint64]uint32{}
		c.places = map[string]inode{}
	}
	clear(c.buckets)
	clear(c.objects)
	clear(c.systems)
	clear(c.places)
	c.unix, c.names, c.ids = nil, nil, nil
	c.tcp, c.queued, c.ends, c.early, c.sockets, c.addresses, c.lost = nil, nil, nil, nil, nil, nil, nil
}

// Close gives back what is kept from one capture to the next.
func (c *Capturer) Close() {
	if c.diag != nil {
		_ = c.diag.Close()
		c.diag = nil
	}
	if c.scratch != nil {
		_ = c.scratch.Close()
		c.scratch = nil
	}
}

// release closes all duplicates.
func (c *Capturer) release() {
	for i := range c.descriptions {
		_ = unix.Close(c.descriptions[i].fd)
		c.descriptions[i] = description{}
	}
	c.closeTerminals()
	c.descriptions, c.procs = c.descriptions[:0], nil
}

// discard drops what a capture that failed has saved.
func (c *Capturer) discard() {
	for i := range c.descriptions {
		if f := c.descriptions[i].file; f != nil && f.Blob != nil {
			_ = f.Blob.Close()
		}
	}
}

// examine finds out what everything is, and refuses.
func (c *Capturer) examine() error {
	files := make([]image.File, len(c.descriptions))
	for i := range c.descriptions {
		d := &c.descriptions[i]
		d.index, d.file = i, &files[i]
		for _, k := range kinds {
			if k.claims(c, d) {
				d.kind = k
				break
			}
		}
		if d.kind == nil {
			return c.refuseUnknown(d)
		}
		*d.file = image.File{
			Kind: d.kind.name(), Flags: d.flags, Pos: d.pos,
			Mode: d.stat.Mode, Dev: d.stat.Dev, Ino: d.stat.Ino, Rdev: d.stat.Rdev,
		}
	}
	for i := range c.descriptions {
		d := &c.descriptions[i]
		if err := d.kind.examine(c, d); err != nil {
			return err
		}
		if err := c.owner(d); err != nil {
			return err
		}
		if err := c.refuseCarried(d); err != nil {
			return err
		}
	}
	if err := c.examineWaiting(); err != nil {
		return err
	}
	if err := c.examineLocks(); err != nil {
		return err
	}
	if err := c.examineAdriftLocks(); err != nil {
		return err
	}
	return c.examineTerminals()
}

// object is the number that stands for the inode of d in the image.
func (c *Capturer) object(d *description) int {
	k := inode{d.stat.Dev, d.stat.Ino}
	o, ok := c.objects[k]
	if !ok {
		o = object{len(c.objects) + 1, d.index}
		c.objects[k] = o
	}
	return o.number
}

// isFirst reports whether d is the description that carries the content of its
// object.
func (c *Capturer) isFirst(d *description) bool {
	return c.objects[inode{d.stat.Dev, d.stat.Ino}].first == d.index
}

func (c *Capturer) result() *Result {
	r := &Result{Tables: c.tables, Files: make([]*image.File, len(c.descriptions))}
	for i := range c.descriptions {
		r.Files[i] = c.descriptions[i].file
	}
	r.Files = append(r.Files, c.left...)
	for i := range c.terminals {
		r.Terminals = append(r.Terminals, c.terminals[i].image)
	}
	c.tables = nil
	return r
}

// owner captures who gets the signals of a description.
func (c *Capturer) owner(d *description) error {
	if d.flags&unix.O_PATH != 0 {
		return nil
	}
	o, err := getOwner(d.fd)
	if err != nil {
		return fmt.Errorf("owner of %s: %w", c.holder(d), err)
	}
	sig, err := unix.FcntlInt(uintptr(d.fd), unix.F_GETSIG, 0)
	if err != nil {
		return fmt.Errorf("signal of %s: %w", c.holder(d), err)
	}
	d.file.OwnerSignal = sig
	if o.pid == 0 {
		return nil
	}
	inside := c.insidePID(int(o.pid), o.kind == ownerGroup)
	if inside == 0 { // it has ended, and its number may be another's by then
		return nil
	}
	d.file.OwnerType, d.file.Owner = int(o.kind), inside
	return nil
}

// exhausted explains that this process may open no more files.
func exhausted(err error) error {
	if err == unix.EMFILE || err == unix.ENFILE {
		return fault.New(fault.Exhausted, "duplicate a descriptor: %w", err).
			WithHint("raise the limit of open files of the daemon (LimitNOFILE)")
	}
	return err
}
