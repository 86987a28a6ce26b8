package overlay

import (
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/btrfs"
)

// A deletion is two things: an ioctl, which takes the subvolume out of the
// directory, and the work of the file system's cleaner, which frees it later
// and slows every snapshot meanwhile. The cleaner cannot be held, so the
// reaper bounds what it is given: never more than this many subvolumes at once,
// and none while somebody holds the reaper.
const (
	atOnce = 4
	// pollEvery is how often the reaper looks whether the cleaner is done.
	pollEvery = 50 * time.Millisecond
	// commitAfter is how long it waits for a commit by others, which wakes the
	// cleaner, before it makes one itself.
	commitAfter = 500 * time.Millisecond
	// heldAfter is when it takes a subvolume that does not go away for one in
	// which files are open: the kernel keeps those whole until they are closed.
	heldAfter = 3 * time.Second
	// pollHeldEvery is how often it looks after those.
	pollHeldEvery = 2 * time.Second
)

// cleaning is a subvolume that was deleted and is not yet freed.
type cleaning struct {
	id    uint64
	since time.Time
}

// reaper deletes removed subvolumes in the background.
type reaper struct {
	pool   int
	limits *limits
	log    *slog.Logger

	holds atomic.Int64
	wake  chan struct{} // capacity 1: something changed
	quit  chan struct{}
	done  chan struct{}

	mu     sync.Mutex
	queue  []string // names in the pool, oldest first
	pins   map[string]int
	quotas []btrfs.QgroupID // dropped; to be removed when they are empty

	// Of the goroutine alone.
	members   []btrfs.QgroupID // the groups of subvolumes that are gone
	cleaning  []cleaning       // what the cleaner has in hand
	held      []cleaning       // what open files keep from it
	counted   int              // uppers that are gone for their quota's limit but still count
	committed time.Time
}

func newReaper(pool int, limits *limits, log *slog.Logger) *reaper {
	r := &reaper{
		pool: pool, limits: limits, log: log,
		wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
		pins: map[string]int{},
	}
	go r.run()
	return r
}

// hold and release do not allocate or block: they are called around the time
// in which a sandbox stands still.
func (r *reaper) hold() { r.holds.Add(1) }

func (r *reaper) release() {
	if n := r.holds.Add(-1); n == 0 {
		r.nudge()
	} else if n < 0 {
		panic("rootfs: Release without Hold")
	}
}

func (r *reaper) nudge() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *reaper) add(name string) {
	r.mu.Lock()
	r.queue = append(r.queue, name)
	r.mu.Unlock()
	r.nudge()
}

// pin keeps a subvolume from being deleted until the returned function is
// called, also when it is removed meanwhile.
func (r *reaper) pin(id string) (unpin func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pins[id]++
	return func() {
		r.mu.Lock()
		if r.pins[id]--; r.pins[id] == 0 {
			delete(r.pins, id)
		}
		r.mu.Unlock()
		r.nudge()
	}
}

func (r *reaper) dropQuota(q btrfs.QgroupID) {
	r.mu.Lock()
	r.quotas = append(r.quotas, q)
	r.mu.Unlock()
	r.nudge()
}

// stop ends the goroutine; what is still queued stays in the pool.
func (r *reaper) stop() {
	close(r.quit)
	<-r.done
}

func (r *reaper) run() {
	defer close(r.done)
	for {
		var poll <-chan time.Time
		if again := r.step(); again > 0 {
			poll = time.After(again)
		}
		select {
		case <-r.quit:
			return
		case <-r.wake:
		case <-poll:
		}
	}
}

// step does what can be done now, and says when to look again; 0 is when
// something changes.
func (r *reaper) step() (again time.Duration) {
	if r.holds.Load() > 0 {
		return 0 // release nudges
	}
	if err := r.collect(); err != nil {
		r.log.Warn("rootfs: watch the deletion of subvolumes", "err", err)
		r.cleaning, r.held = nil, nil
	}
	for len(r.cleaning) < atOnce && r.holds.Load() == 0 {
		name, ok := r.next()
		if !ok {
			break
		}
		if err := r.delete(name); err != nil {
			// It stays in the pool; the next store that opens it tries again.
			r.log.Warn("rootfs: delete a removed subvolume", "name", name, "err", err)
		}
	}
	switch {
	case len(r.cleaning) > 0 || r.counted > len(r.held):
		return pollEvery
	case r.holds.Load() > 0:
		return 0
	}
	r.removeQuotas()
	if len(r.held) > 0 {
		return pollHeldEvery
	}
	return 0
}

// collect forgets the subvolumes that the cleaner is done with.
func (r *reaper) collect() error {
	held, err := r.remaining(r.held)
	if err != nil {
		return err
	}
	left, err := r.remaining(r.cleaning)
	if err != nil {
		return err
	}
	r.cleaning, r.held = left[:0], held
	for _, c := range left {
		if time.Since(c.since) > heldAfter {
			r.held = append(r.held, c)
		} else {
			r.cleaning = append(r.cleaning, c)
		}
	}
	// A discount ends with what it is for, or a limit would be higher than it is.
	if r.counted, err = r.limits.refresh(); err != nil {
		return err
	}
	if len(r.cleaning)+r.counted > 0 && time.Since(r.committed) > commitAfter {
		r.committed = time.Now()
		return btrfs.Sync(r.pool)
	}
	return nil
}

// remaining returns those of cs that are still there.
func (r *reaper) remaining(cs []cleaning) (left []cleaning, err error) {
	for _, c := range cs {
		there, err := btrfs.Exists(r.pool, c.id)
		if err != nil {
			return nil, err
		}
		if there {
			left = append(left, c)
		} else {
			r.members = append(r.members, btrfs.QgroupID(c.id))
		}
	}
	return left, nil
}

// next takes the oldest name that nobody pins off the queue.
func (r *reaper) next() (name string, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, name := range r.queue {
		if r.pins[removedID(name)] == 0 {
			r.queue = append(r.queue[:i], r.queue[i+1:]...)
			return name, true
		}
	}
	return "", false
}

func (r *reaper) delete(name string) error {
	fd, err := unix.Openat(r.pool, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	info, err := btrfs.SubvolumeInfo(fd)
	unix.Close(fd)
	if err != nil {
		return err
	}
	err = btrfs.Destroy(r.pool, name)
	if errors.Is(err, unix.ENOSPC) {
		// The pool keeps a part of its device back for this moment.
		if err = btrfs.ResizeMax(r.pool); err == nil {
			err = btrfs.Destroy(r.pool, name)
		}
	}
	if err != nil {
		return err
	}
	now := time.Now()
	if len(r.cleaning) == 0 {
		r.committed = now
	}
	r.cleaning = append(r.cleaning, cleaning{info.ID, now})
	return nil
}

// removeQuotas removes the groups of deleted subvolumes, and then the dropped
// quotas that have no members any more. A subvolume's group stays as long as
// snapshots hold what was written in it, for it counts that.
func (r *reaper) removeQuotas() {
	r.members = r.removeEmpty(r.members)
	r.mu.Lock()
	quotas := r.quotas
	r.quotas = nil
	r.mu.Unlock()
	if len(quotas) == 0 {
		return
	}
	quotas = r.removeEmpty(quotas)
	if len(quotas) > 0 {
		// What was freed is counted at the next commit.
		if err := btrfs.Sync(r.pool); err != nil {
			r.log.Warn("rootfs: remove quotas", "err", err)
		}
		r.members = r.removeEmpty(r.members)
		quotas = r.removeEmpty(quotas)
	}
	r.mu.Lock()
	r.quotas = append(r.quotas, quotas...)
	r.mu.Unlock()
}

// removeEmpty removes the groups that are empty and returns the others.
func (r *reaper) removeEmpty(groups []btrfs.QgroupID) (left []btrfs.QgroupID) {
	for i, q := range groups {
		if r.holds.Load() > 0 {
			return append(left, groups[i:]...)
		}
		err := btrfs.RemoveQgroup(r.pool, q)
		switch {
		case err == nil, errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTCONN): // no quotas on this kernel
		case errors.Is(err, unix.EBUSY):
			left = append(left, q)
		default:
			r.log.Warn("rootfs: remove a quota", "quota", q, "err", err)
		}
	}
	return left
}
