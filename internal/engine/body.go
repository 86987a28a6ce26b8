package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/namespace"
	"github.com/sandtree/sandtree/internal/process"
	"github.com/sandtree/sandtree/internal/sandbox"
)

// body is a live incarnation and all that belongs to it on this side.
type body struct {
	family *family
	upper  string         // id of its files in the store
	blank  *sandbox.Blank // until it has a root; then
	inc    *sandbox.Incarnation
	root   int // descriptors: its root directory,
	proc   int // and its /proc
	time   int // the time namespace of what runs inside
	device uint64
	// monotonic and boottime are how far its clocks are ahead of the host's.
	monotonic, boottime time.Duration

	// The rest belongs to the thread, which exists from the first checkpoint or
	// restore on.
	thread *thread
	live   *process.Live
	// since is the checkpoint that the next capture is a difference to; empty:
	// none. Guarded by the box's lock.
	since string
	// counted is what its files held at the last checkpoint, in bytes. Guarded by the box's lock.
	counted int64
	// snapped is when its files were last snapshot, took what the capture then took of
	// an arena, in bytes. Guarded by the box's lock.
	snapped time.Time
	took    int
	// finishing orders the checkpoints whose zygotes are being made. They may be
	// made while the body's thread does something else, but not after its end.
	finishing *finishing
	// zygotes is held for accesses to the two maps while lineages are brought up
	// to date beside each other.
	zygotes sync.Mutex
	bases   map[int]*base // by lineage: as of the last checkpoint
	// ancestors are the zygotes that the body was made from, and that bases are made
	// from when they are first needed, held for that. They are, or were, those of
	// origin. left are the bases of the body before it.
	ancestors map[int]*sharedZygote
	origin    *checkpoint
	left      map[int]*base
	// before is the body that this one has taken the place of, until it takes over
	// its bases; succeeded is set if another body takes over this one's. Guarded by
	// the box's lock until a checkpoint is taken.
	before    *body
	succeeded bool
}

// newBody makes a body without files, and so without a root, yet.
func (f *family) newBody(b *box, clocks [2]time.Duration) (_ *body, err error) {
	o := &body{
		family: f, root: -1, proc: -1, time: -1, monotonic: clocks[0], boottime: clocks[1],
		bases: map[int]*base{}, ancestors: map[int]*sharedZygote{}, finishing: newFinishing(),
	}
	l, err := limits(b.resources)
	if err != nil {
		return nil, err
	}
	if o.blank, err = f.blanks.get(f.wallsFor(b.setuid), l); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, o.close(context.Background()))
		}
	}()
	if clocks != [2]time.Duration{} {
		if err := o.blank.SetClocks(clocks[0], clocks[1]); err != nil {
			return nil, err
		}
	}
	if o.time, err = o.blank.Namespace(namespace.TimeForChildren); err != nil {
		return nil, err
	}
	return o, nil
}

// attach gives the body its root, on an upper that exists. On an error the upper
// is the caller's still.
func (o *body) attach(b *box, upper string) error {
	root, err := o.family.store.MountRoot(upper)
	if err != nil {
		return err
	}
	o.upper = upper
	blank := o.blank
	o.blank = nil // gone, if it cannot be attached
	if o.inc, err = blank.Attach(sandbox.Spec{Root: root, Hostname: b.hostname, ShmBytes: shmBytes(b)}); err != nil {
		return err
	}
	if o.root, err = o.inc.Root(); err != nil {
		return err
	}
	if o.proc, err = unix.Openat(o.root, "proc", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("open /proc of the sandbox: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(o.root, &st); err != nil {
		return fmt.Errorf("stat the sandbox's root: %w", err)
	}
	o.device = st.Dev
	return nil
}

// shmBytes is the size of /dev/shm: half the memory, as on an ordinary machine,
// or the default.
func shmBytes(b *box) int64 { return b.resources.MemoryBytes / 2 }

// start starts the thread.
func (o *body) start() {
	if o.thread == nil {
		o.thread = newThread()
	}
}

// follow starts the thread, and the following of the processes if nothing
// follows them yet.
func (o *body) follow() error {
	o.start()
	if o.live != nil {
		return nil
	}
	return o.thread.do(func() (err error) {
		o.live, err = process.NewLive(o.liveConfig())
		return err
	})
}

func (o *body) liveConfig() process.Config {
	return process.Config{
		Threads: o.inc.Cgroup().ThreadsFD(), Init: o.inc.PID(), Proc: o.proc, Root: o.root, Owner: o.inc.Owner(), Device: o.device,
		MonotonicOffset: o.monotonic, BoottimeOffset: o.boottime, Filters: confinementFilters,
		Realtime: realtime, Beside: o.family.crew.Beside, Scratch: o.thread.scratch,
	}
}

const (
	// confinementFilters is how many seccomp filters package confine installs.
	confinementFilters = 1
	// realtime lets the threads that stop processes, and the processes while
	// they stand, have real-time priority.
	realtime = true
)

// close ends everything of the body but its files.
func (o *body) close(ctx context.Context) error {
	return o.end(ctx, (*sandbox.Incarnation).Close)
}

// closeBehind is close while somebody waits for what comes in the body's place.
func (o *body) closeBehind(ctx context.Context) error {
	return o.end(ctx, (*sandbox.Incarnation).CloseBehind)
}

// letGo makes processes that stand go on, and tells whether none is traced.
func (o *body) letGo() (all bool, err error) {
	all = true
	if o.thread == nil {
		return all, nil
	}
	err = o.thread.do(func() (err error) {
		if o.live != nil {
			all, err = o.live.LetGo()
		}
		return err
	})
	return all, err
}

// unfollow ends the following of the processes, with its thread.
func (o *body) unfollow() error {
	if o.thread == nil {
		return nil
	}
	err := o.thread.do(func() error {
		if o.live == nil {
			return nil
		}
		return o.live.Close()
	})
	o.thread.close()
	return err
}

// end ends everything of the body, its incarnation in the way that is given.
func (o *body) end(ctx context.Context, closeIncarnation func(*sandbox.Incarnation, context.Context) error) error {
	var errs []error
	// Write tracking ends after the processes, where they can end before it.
	all, err := o.letGo()
	errs = append(errs, err)
	if !all {
		errs = append(errs, o.unfollow())
	}
	switch {
	case o.inc != nil:
		errs = append(errs, closeIncarnation(o.inc, ctx))
	case o.blank != nil:
		errs = append(errs, o.blank.Close(ctx))
	}
	if all {
		errs = append(errs, o.unfollow())
	}
	o.finishing.wait()
	for _, fd := range []int{o.root, o.proc, o.time} {
		if fd >= 0 {
			errs = append(errs, unix.Close(fd))
		}
	}
	if o.succeeded {
		o.dropAncestors(nil)
	} else {
		o.takeOver() // if no checkpoint has
		o.dropBases()
	}
	return errors.Join(errs...)
}
