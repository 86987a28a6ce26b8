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
)

// reaper deletes removed subvolumes in the background.
type reaper struct {
	pool int
	log  *slog.Logger

	holds atomic.Int64
	wake  chan struct{} // capacity 1: something changed
	quit  chan struct{}
	done  chan struct{}

	mu     sync.Mutex
	queue  []string // names in the pool, oldest first
	pins   map[string]int
	quotas []btrfs.QgroupID // dropped; to be removed when they are empty

	// Of the goroutine alone.
	members  []btrfs.QgroupID // the groups of subvolumes that are gone
	cleaning []uint64         // ids of subvolumes that the cleaner has in hand
	since    time.Time
}

func newReaper(pool int, log *slog.Logger) *reaper {
	r := &reaper{
		pool: pool, log: log,
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
		if r.step() {
			poll = time.After(pollEvery)
		}
		select {
		case <-r.quit:
			return
		case <-r.wake:
		case <-poll:
		}
	}
}

// step does what can be done now, and reports whether to look again soon.
func (r *reaper) step() (again bool) {
	if r.holds.Load() > 0 {
		return false // release nudges
	}
	if err := r.collect(); err != nil {
		r.log.Warn("rootfs: watch the deletion of subvolumes", "err", err)
		r.cleaning = nil
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
	if len(r.cleaning) == 0 && r.holds.Load() == 0 {
		r.removeQuotas()
	}
	return len(r.cleaning) > 0
}

// collect forgets the subvolumes that the cleaner is done with.
func (r *reaper) collect() error {
	left := r.cleaning[:0]
	for _, id := range r.cleaning {
		there, err := btrfs.Exists(r.pool, id)
		if err != nil {
			return err
		}
		if there {
			left = append(left, id)
		} else {
			r.members = append(r.members, btrfs.QgroupID(id))
		}
	}
	if len(left) < len(r.cleaning) {
		r.since = time.Now()
	}
	r.cleaning = left
	if len(left) > 0 && time.Since(r.since) > commitAfter {
		r.since = time.Now()
		return btrfs.Sync(r.pool)
	}
	return nil
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
	if len(r.cleaning) == 0 {
		r.since = time.Now()
	}
	r.cleaning = append(r.cleaning, info.ID)
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
