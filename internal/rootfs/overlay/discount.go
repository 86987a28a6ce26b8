package overlay

import (
	"errors"
	"io/fs"
	"math"
	"sync"

	"github.com/sandtree/sandtree/internal/linux/btrfs"
	"github.com/sandtree/sandtree/internal/rootfs"
)

// limits knows the limits of a store's quotas, and holds them higher than they are by
// what removed uppers have and nobody else: the kernel counts that until its cleaner
// has freed it, about a second later.
//
// An upper's own group counts each extent that was written in it, as long as the upper
// or a snapshot has it. So what the group has beyond what it had at the upper's last
// snapshot is the upper's alone, whatever was deleted or overwritten since.
type limits struct {
	pool int
	fsid string

	mu     sync.Mutex
	bounds map[rootfs.Quota]*bound
}

// bound is a quota with a limit.
type bound struct {
	limit int64
	set   int64 // what the kernel was told
	gone  map[btrfs.QgroupID]*discounted
}

// discounted is an upper that does not count any more.
type discounted struct {
	kept  int64 // what snapshots may hold of its group
	bytes int64 // what the group had beyond that when it was last looked at
}

// mostRaise bounds what a limit is held higher by, as a multiple of it: enough for several
// rollbacks a second of a sandbox that fills its disk each time, and an end for whoever
// finds a way to keep removed uppers from being freed.
const mostRaise = 4

// raise is what the limit is held higher by.
func (b *bound) raise() int64 {
	var sum int64
	for _, d := range b.gone {
		sum += d.bytes
	}
	return min(sum, mostRaise*b.limit)
}

func newLimits(pool int, fsid string) *limits {
	return &limits{pool: pool, fsid: fsid, bounds: map[rootfs.Quota]*bound{}}
}

// set limits a quota; 0 takes the limit away.
func (l *limits) set(q rootfs.Quota, limit int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.bounds[q]
	if b == nil {
		b = &bound{gone: map[btrfs.QgroupID]*discounted{}}
	}
	old := b.limit
	b.limit = limit
	if err := l.apply(q, b); err != nil {
		b.limit = old
		return err
	}
	l.bounds[q] = b
	return nil
}

// apply tells the kernel. mu is held.
func (l *limits) apply(q rootfs.Quota, b *bound) error {
	n := b.limit + b.raise()
	if n == b.set {
		return nil
	}
	if err := btrfs.LimitQgroup(l.pool, qgroup(q), n); err != nil {
		return err
	}
	b.set = n
	return nil
}

// drop forgets a quota.
func (l *limits) drop(q rootfs.Quota) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.bounds, q)
}

// bounded reports whether a quota has a limit.
func (l *limits) bounded(q rootfs.Quota) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.bounds[q]
	return b != nil && b.limit > 0
}

// raised is what a quota's limit is held higher by.
func (l *limits) raised(q rootfs.Quota) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if b := l.bounds[q]; b != nil {
		return b.raise()
	}
	return 0
}

// discount has what an upper's group holds beyond kept bytes not count against a quota's
// limit, until it is freed or count is called.
func (l *limits) discount(member btrfs.QgroupID, q rootfs.Quota, kept int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.bounds[q]
	if b == nil || b.limit == 0 {
		return nil
	}
	b.gone[member] = &discounted{kept: kept}
	_, err := l.look(q, b)
	return err
}

// look brings what is discounted in a quota up to date, and tells how many uppers that
// are. mu is held.
func (l *limits) look(q rootfs.Quota, b *bound) (left int, err error) {
	for member, d := range b.gone {
		n, e := btrfs.QgroupHolds(l.fsid, member)
		if e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
		if d.bytes = n - d.kept; e != nil || d.bytes <= 0 {
			delete(b.gone, member)
		}
	}
	return len(b.gone), errors.Join(err, l.apply(q, b))
}

// refresh brings all discounts up to date, and tells how many there are.
func (l *limits) refresh() (left int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for q, b := range l.bounds {
		if len(b.gone) == 0 {
			continue
		}
		n, e := l.look(q, b)
		left, err = left+n, errors.Join(err, e)
	}
	return left, err
}

// count ends the discount of an upper, if it has one.
func (l *limits) count(member btrfs.QgroupID, q rootfs.Quota) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.bounds[q]
	if b == nil {
		return nil
	}
	delete(b.gone, member)
	return l.apply(q, b)
}

// Discount implements [rootfs.Store].
func (s *Store) Discount(id string) (undo func(), err error) {
	u, err := s.upper(id)
	if err == nil {
		err = u.lock()
	}
	if err != nil {
		return nil, rootfs.Errorf("discount %s: %w", id, err)
	}
	defer u.mu.Unlock()
	if err := s.discount(u); err != nil {
		return nil, rootfs.Errorf("discount %s: %w", id, err)
	}
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		if u.removed {
			return
		}
		member, err := u.group()
		if err == nil {
			err = s.limits.count(member, u.quota)
		}
		if err != nil {
			s.log.Warn("rootfs: count an upper again", "upper", id, "err", err)
		}
	}, nil
}

// discount does that. The upper's mutex is held.
func (s *Store) discount(u *upper) error {
	if !s.limits.bounded(u.quota) {
		return nil
	}
	member, err := u.group()
	if err != nil {
		return err
	}
	return s.limits.discount(member, u.quota, u.kept)
}

// keptBy notes after a snapshot what of an upper its snapshots may hold. The upper's
// mutex is held.
func (s *Store) keptBy(u *upper) {
	u.kept = math.MaxInt64 // not known
	if !s.limits.bounded(u.quota) {
		return
	}
	if member, err := u.group(); err == nil {
		if n, err := btrfs.QgroupHolds(s.fsid, member); err == nil {
			u.kept = n
		}
	}
}
