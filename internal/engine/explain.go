package engine

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process"
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// explain lists everything that a checkpoint holds, the sandbox's own first, then
// by process.
func explain(c *checkpoint, capture *process.Capture) []control.Item {
	x := &explanation{tree: c.tree, told: map[int]bool{}}
	x.sandbox(c)
	for _, p := range c.tree.Processes {
		x.process(p, capture)
	}
	slices.SortStableFunc(x.items, func(a, b control.Item) int { return cmp.Compare(a.Process, b.Process) })
	return x.items
}

type explanation struct {
	tree  *image.Tree
	items []control.Item
	told  map[int]bool // files whose content was counted
	pid   int
	comm  string
}

// add adds what there is any of.
func (x *explanation) add(kind, what string, count int, bytes int64) {
	if count > 0 {
		x.items = append(x.items, control.Item{Process: x.pid, Command: x.comm, Kind: kind, What: what, Count: count, Bytes: bytes})
	}
}

// sandbox lists what belongs to no process.
func (x *explanation) sandbox(c *checkpoint) {
	for _, s := range x.tree.Shared {
		x.add("shared memory", s.Name, 1, allocated(s.FD))
	}
	for _, s := range x.tree.SystemV.Segments {
		x.add("System V segment", object(&s.Object), 1, blob(s.Content))
	}
	for _, s := range x.tree.SystemV.Sets {
		x.add("System V semaphores", object(&s.Object), len(s.Values), int64(2*len(s.Values)))
	}
	for _, q := range x.tree.SystemV.Queues {
		var n int64
		for _, m := range q.Messages {
			n += int64(len(m.Text))
		}
		x.add("System V queue", fmt.Sprintf("%s, %d messages", object(&q.Object), len(q.Messages)), 1, n)
	}
	x.queues()
	for _, t := range x.tree.Terminals {
		x.add("terminal", fmt.Sprintf("/dev/pts/%d", t.Number), 1, int64(len(t.Input)+len(t.Output)))
	}
	x.add("session", "", len(c.sessions), 0)
}

// queues lists the POSIX message queues that no process has open.
func (x *explanation) queues() {
	open := map[int]bool{} // by object
	for _, p := range x.tree.Processes {
		for _, d := range p.Descriptors {
			open[x.tree.Files[d.File].Object] = true
		}
	}
	for _, f := range x.tree.Files {
		if f.Queue != nil && !open[f.Object] {
			var n int64
			for _, m := range f.Queue.Messages {
				n += int64(len(m.Text))
			}
			x.add(string(f.Kind), fmt.Sprintf("%s, %d messages, open nowhere", f.Path, len(f.Queue.Messages)), 1, n)
		}
	}
}

func object(o *image.Object) string {
	if o.Key == 0 {
		return fmt.Sprintf("%d", o.ID)
	}
	return fmt.Sprintf("%d, key %#x", o.ID, o.Key)
}

func (x *explanation) process(p *image.Process, capture *process.Capture) {
	x.pid, x.comm = p.PID, p.Comm
	if p.State == image.Zombie {
		x.add("zombie", "", 1, 0)
		return
	}
	if d := capture.Deltas[p.PID]; d != nil {
		what := "what changed"
		if d.Full {
			what = "all"
		}
		x.add("memory", fmt.Sprintf("%s, %d mappings", what, len(p.Memory.VMAs)), 1, d.Bytes())
	}
	pending, filters, state := len(p.Pending), 0, 0
	for _, t := range p.Threads {
		pending += len(t.Pending)
		filters += len(t.Filters)
		state += len(t.XState)
	}
	what := ""
	if p.State == image.Stopped {
		what = "stopped"
	}
	x.add("threads", what, len(p.Threads), int64(state))
	x.add("pending signals", "", pending, int64(128*pending))
	x.add("seccomp filters", "", filters, 0)
	timers := len(p.POSIXTimers)
	for _, t := range p.Timers {
		if t.Value != (unix.Timeval{}) {
			timers++
		}
	}
	x.add("timers", "", timers, 0)
	for _, d := range p.Descriptors {
		x.descriptor(d)
	}
	if p.ExeFile > 0 {
		x.file("program without a name", p.Exe, p.ExeFile-1)
	}
	if p.CwdFile > 0 {
		x.file("directory without a name", p.Cwd, p.CwdFile-1)
	}
}

func (x *explanation) descriptor(d image.Descriptor) {
	f := x.tree.Files[d.File]
	what := fmt.Sprintf("%d %s", d.Number, f.Path)
	if f.Deleted {
		what += " (deleted)"
	}
	if f.SessionID != "" {
		what += "of " + f.SessionID
	}
	if n := len(d.Locks) + len(f.Locks); n > 0 {
		what += fmt.Sprintf(", %d locks", n)
	}
	x.file(string(f.Kind), strings.TrimSpace(what), d.File)
}

// file adds a file, with its content if that was not told yet.
func (x *explanation) file(kind, what string, i int) {
	f := x.tree.Files[i]
	var n int64
	if !x.told[i] {
		x.told[i] = true
		n = blob(f.Blob) + int64(len(f.Content))
		if f.Queue != nil {
			for _, m := range f.Queue.Messages {
				n += int64(len(m.Text))
			}
		}
	}
	x.add(kind, what, 1, n)
}

// blob is how many bytes a saved content takes.
func blob(b *image.Blob) int64 {
	if b == nil || b.File == nil {
		return 0
	}
	return allocatedOf(b.File)
}

func allocatedOf(f *os.File) int64 { return allocated(int(f.Fd())) }

func allocated(fd int) int64 {
	var st unix.Stat_t
	if fd < 0 || unix.Fstat(fd, &st) != nil {
		return 0
	}
	return st.Blocks * 512
}
