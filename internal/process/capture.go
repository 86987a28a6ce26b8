package process

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/failpoint"
	"github.com/sandtree/sandtree/internal/process/descriptor"
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/process/memory"
)

// The steps of a capture that can be made to fail, each after it was done.
var (
	failRegisters   = failpoint.New("process.capture.registers")
	failDescriptors = failpoint.New("process.capture.descriptors")
	failArea        = failpoint.New("process.capture.area")
	failEntered     = failpoint.New("process.capture.entered")
	failInside      = failpoint.New("process.capture.inside")
	failShared      = failpoint.New("process.capture.shared")
	failPages       = failpoint.New("process.capture.pages")
)

// Capture is what one stop found.
type Capture struct {
	Tree *image.Tree
	// Deltas are the private memory that changed, by pid. Their pages are in
	// the arena.
	Deltas map[int]*memory.Delta
	// Lineages are the parts of the tree that have a zygote each.
	Lineages []*Lineage
	// Stages say what took how long.
	Stages []Stage
	// backings are files of mappings that are not the overlay's, or have no
	// name: see [Capture.Backing].
	backings map[vmaKey]int
	// shared is shared memory that is in the arena: see [Capture.KeepShared].
	shared []*sharedCopy
}

type vmaKey struct {
	pid   int
	start uint64
}

// Stage is a step of a capture, or of a restore.
type Stage struct {
	Name string
	Took time.Duration
}

// Prepare does before the stop what then takes no time in it. Processes that
// are gone meanwhile do no harm. Soon says that the last stop was just before: what
// had not changed then is not looked at.
func (l *Live) Prepare(soon bool) {
	for _, p := range l.procs {
		_ = p.memory.Prepare(soon) // what failed here is done in the stop
	}
}

// CopyAhead copies memory that was written since the last capture while the
// processes still run, if there is much of it. The next capture must be given the
// same arena. Soon is as in [Live.Prepare].
func (l *Live) CopyAhead(arena *memory.Arena, soon bool) error {
	var copied, left uint64
	for _, p := range l.procs {
		n, more, err := p.memory.CopyAhead(arena, soon)
		if err != nil {
			return err
		}
		if n > 0 {
			copied, left = copied+n, left+more
		}
	}
	var warm uint64
	if copied > 0 {
		warm = warmAhead + left + left/4
	}
	if !soon {
		whole, err := l.unseen()
		if err != nil {
			return err
		}
		if whole > 0 {
			warm += whole + whole/8
		}
	}
	if warm == 0 {
		return nil
	}
	return arena.Warm(int(min(warm, mostAhead))) //nolint:gosec // bounded
}

// warmAhead is how much memory is made ready in any case for what is left to a stop, in
// bytes, and mostAhead how much at most.
const (
	warmAhead = 8 << 20
	mostAhead = 512 << 20
)

// Join makes the deltas complete with what was copied ahead. It is to be called once, when
// the processes run again.
func (c *Capture) Join() {
	for _, d := range c.Deltas {
		d.Join()
	}
}

// Capture reads everything, in the stopped tree. If the result comes to nothing,
// call [Live.Discard]: pages that it found changed would be taken for unchanged
// by the next one. The tree is the same as before in any case.
//
// Pages are copied into the arena, which the result refers to, and so is shared memory,
// until [Capture.KeepShared]. From the call of
// files on, which must not wait, files are neither opened nor looked at: a
// snapshot of them can be taken beside.
func (l *Live) Capture(env descriptor.Env, arena *memory.Arena, files func()) (*Capture, error) {
	c := &Capture{Tree: &image.Tree{}, Deltas: map[int]*memory.Delta{}, backings: map[vmaKey]int{}}
	l.scanned = false
	if err := l.capture(c, env, arena, files); err != nil {
		c.Discard()
		if l.scanned { // refusals come before that
			l.Discard()
		}
		return nil, err
	}
	return c, nil
}

func (l *Live) capture(c *Capture, env descriptor.Env, arena *memory.Arena, files func()) error {
	last := time.Now()
	stage := func(name string, fail *failpoint.Point) error {
		now := time.Now()
		c.Stages = append(c.Stages, Stage{name, now.Sub(last)})
		last = now
		return fail.Hit()
	}
	if err := l.readProcesses(); err != nil {
		return err
	}
	zombies, err := l.readZombies()
	if err != nil {
		return err
	}
	if err := stage("registers", failRegisters); err != nil {
		return err
	}
	if err := l.refuse(zombies); err != nil {
		return err
	}
	if err := l.findNames(env); err != nil {
		return err
	}
	if err := l.readSystemV(c.Tree); err != nil {
		return err
	}
	if err := l.refuseSegments(c.Tree); err != nil {
		return err
	}
	shared := l.beginShared(arena)
	defer func() { _ = shared.early() }() // nothing may look at it when they go on
	if err := l.readDescriptors(c, env); err != nil {
		return err
	}
	if err := l.keepNameless(c.Tree); err != nil {
		return err
	}
	if err := stage("descriptors", failDescriptors); err != nil {
		return err
	}
	files()
	for _, p := range l.order {
		c.Tree.Processes = append(c.Tree.Processes, p.image)
	}
	c.Tree.Processes = parentsFirst(append(c.Tree.Processes, zombies...), l.childrenOf)
	l.followLineages(c)
	found, pages := l.newScan(), func() error { return nil }
	defer func() { _ = pages() }() // nothing may look at them when they go on
	err = l.readInside(func() {
		l.scanned = true
		pages = sync.OnceValue(l.cfg.Beside(func() error { return l.readPages(c, arena, found) }))
	})
	if err != nil {
		return err
	}
	l.findLastPID(c)
	if err := stage("inside", failInside); err != nil {
		return err
	}
	if err := l.readShared(c, shared); err != nil {
		return err
	}
	if err := failShared.Hit(); err != nil {
		return err
	}
	if err := l.readClocks(c.Tree); err != nil {
		return err
	}
	if len(l.order) > 1 {
		found.run(l.second())
	}
	if err := pages(); err != nil {
		return err
	}
	if err := l.readMappings(c); err != nil {
		return err
	}
	return stage("memory", failPages)
}

// Discard makes the next capture a full one, since the last came to nothing.
func (l *Live) Discard() {
	for _, p := range l.procs {
		p.memory.Forget()
	}
}

// followLineages finds which zygote each process's memory belongs to. One that
// changes over is captured whole, since the new one has nothing of it.
func (l *Live) followLineages(c *Capture) {
	c.Lineages = Lineages(c.Tree)
	byPID := make(map[int]*liveProcess, len(l.order))
	for _, p := range l.order {
		byPID[p.pid] = p
	}
	for _, line := range c.Lineages {
		for _, m := range line.Processes {
			if p := byPID[m.PID]; p != nil && p.lineage != line.Key {
				p.memory.Forget()
				p.lineage = line.Key
			}
		}
	}
}

// findLastPID tells the number that was given last: by the kernel, or else the
// highest.
func (l *Live) findLastPID(c *Capture) {
	c.Tree.LastPID = l.lastPID
	for _, m := range c.Tree.Processes {
		if l.lastPID > 0 {
			break
		}
		c.Tree.LastPID = max(c.Tree.LastPID, m.PID)
		for _, t := range m.Threads {
			c.Tree.LastPID = max(c.Tree.LastPID, t.TID)
		}
	}
}

// openQueues opens the list of message queues at the first stop that can.
func (l *Live) openQueues() (*os.File, error) {
	if l.lists {
		return l.queues, nil
	}
	var err error
	l.queues, err = descriptor.OpenQueues(l.cfg.Root)
	l.lists = err == nil
	return l.queues, err
}

func (l *Live) readDescriptors(c *Capture, env descriptor.Env) error {
	in := make([]descriptor.Process, len(l.order))
	for i, p := range l.order {
		p.closeOnExec = slices.Grow(p.closeOnExec[:0], len(p.numbers))[:len(p.numbers)] // asked later
		in[i] = descriptor.Process{
			HostPID: p.via, PID: p.pid, PIDFD: p.table, Comm: p.stat.comm,
			Group: p.stat.group, Terminal: ptsNumber(p.stat.terminal),
			Numbers: p.numbers, CloseOnExec: p.closeOnExec,
		}
	}
	env.Clocks = clocksOf(&l.cfg)
	var err error
	if env.Queues, err = l.openQueues(); err != nil {
		return err
	}
	r, err := l.descriptors.Capture(in, env)
	if err != nil {
		return err
	}
	c.Tree.Files, c.Tree.Terminals = r.Files, r.Terminals
	for i, p := range l.order {
		p.image.Descriptors = r.Tables[i]
		if n := in[i].Terminal; n >= 0 {
			p.image.Terminal = r.Terminal(n)
		}
	}
	return nil
}

// ptsNumber is the N of /dev/pts/N of a controlling terminal as stat encodes
// it, or -1.
func ptsNumber(dev uint64) int {
	const firstPTS, lastPTS = 136, 143 // Documentation/admin-guide/devices.txt
	major, minor := dev>>8&0xfff, dev&0xff|dev>>12&0xfff00
	if major < firstPTS || major > lastPTS {
		return -1
	}
	return int((major-firstPTS)<<8 | minor)
}

// readZombies finds processes that ended and wait to be reaped by another one
// of the tree. Those that PID 1 reaps are as good as gone.
func (l *Live) readZombies() ([]*image.Process, error) {
	var ids *idMaps // read when there is one
	pids, err := l.pids()
	if err != nil {
		return nil, err
	}
	live := make(map[int]bool, len(l.order))
	for _, p := range l.order {
		live[p.pid] = true
	}
	var out []*image.Process
	for _, pid := range pids {
		if pid == 1 || live[pid] {
			continue
		}
		s, err := l.readStat(pid)
		if err != nil || s.state != 'Z' || !live[s.parent] {
			continue // reaped by PID 1 meanwhile, or about to be
		}
		if ids == nil {
			m, err := readIDMaps(l.cfg.Init)
			if err != nil {
				return nil, err
			}
			ids = &m
		}
		creds, err := l.endedCredentials(pid, ids)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, &image.Process{
			PID: pid, Parent: s.parent, Group: s.group, Session: s.session, State: image.Zombie,
			ExitStatus: s.exitCode, ExitSignal: s.exitSignal, EndedAs: creds, Comm: s.comm, Terminal: -1,
		})
	}
	return out, nil
}

// keepBackings opens the files of new mappings that no path leads to later:
// those without a name, those of a process that was restored, which are a
// layer's or a checkpoint's own, and those that are no files of the overlay.
// The latter can be written meanwhile, so they are copied.
func (l *Live) keepBackings(c *Capture, p *liveProcess, d *memory.Delta) error {
	for i := range d.VMAs {
		v := &d.VMAs[i]
		isNew := v.Fresh || !memory.Tracks(v) // others are not told apart
		foreign := v.Dev != l.cfg.Device
		if v.Kind != image.FileBacked || v.Shared || !isNew || !v.Deleted && !foreign {
			continue
		}
		fd, err := p.openMapped(v)
		if err != nil {
			return fmt.Errorf("open mapped file %s of %s: %w", v.Path, describe(p), err)
		}
		if foreign && !v.Kept {
			live := fd
			fd, err = copyFile(live)
			_ = unix.Close(live)
			if err != nil {
				return fmt.Errorf("copy mapped file %s of %s: %w", v.Path, describe(p), err)
			}
		}
		c.backings[vmaKey{p.pid, v.Start}] = fd
	}
	return nil
}

// Backing returns a descriptor of the file of a mapping that has none by name,
// which stays the capture's; ok is false for mappings whose path can be opened.
func (c *Capture) Backing(pid int, v *image.VMA) (fd int, ok bool) {
	fd, ok = c.backings[vmaKey{pid, v.Start}]
	return fd, ok
}

// Discard frees everything that a capture holds that comes to nothing.
func (c *Capture) Discard() {
	c.Close()
	c.Tree.Close()
}

// Close frees what the zygotes have taken over by then.
func (c *Capture) Close() {
	for k, fd := range c.backings {
		_ = unix.Close(fd)
		delete(c.backings, k)
	}
}

func clocksOf(c *Config) descriptor.Clocks {
	return descriptor.Clocks{Monotonic: c.MonotonicOffset, Boottime: c.BoottimeOffset}
}

// readClocks notes the time inside: the host's clocks and the offsets of the
// incarnation's time namespace.
func (l *Live) readClocks(t *image.Tree) error {
	for _, c := range []struct {
		id  int32
		to  *int64
		off time.Duration
	}{{unix.CLOCK_MONOTONIC, &t.Monotonic, l.cfg.MonotonicOffset}, {unix.CLOCK_BOOTTIME, &t.Boottime, l.cfg.BoottimeOffset}} {
		var ts unix.Timespec
		if err := unix.ClockGettime(c.id, &ts); err != nil {
			return fmt.Errorf("read a clock: %w", err)
		}
		*c.to = ts.Nano() + int64(c.off)
	}
	return nil
}
