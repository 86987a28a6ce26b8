package overlay

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/btrfs"
	"github.com/sandtree/sandtree/internal/rootfs"
)

// A quota is a group of level 1. Every subvolume that counts in it is made a
// member as it is made, so that nothing of it is ever uncounted.
func qgroup(q rootfs.Quota) btrfs.QgroupID {
	if q == 0 {
		return 0
	}
	return btrfs.Level1(uint64(q))
}

// openQuotas finds out whether the pool counts, and the highest number in use.
// Turning quotas on is the pool's affair: it changes the file system for good.
func (s *Store) openQuotas() (err error) {
	s.squota, err = btrfs.SimpleQuota(s.fsid)
	if err != nil {
		return rootfs.Errorf("look for quotas: %w", err)
	}
	if !s.squota {
		return nil
	}
	entries, err := os.ReadDir("/sys/fs/btrfs/" + s.fsid + "/qgroups")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return rootfs.Errorf("list quotas: %w", err)
	}
	for _, e := range entries {
		if n, ok := strings.CutPrefix(e.Name(), "1_"); ok {
			var q uint64
			if _, err := fmt.Sscanf(n, "%d", &q); err == nil {
				s.lastQuota = max(s.lastQuota, q)
			}
		}
	}
	return nil
}

func (s *Store) needQuota() error {
	if s.squota {
		return nil
	}
	return fault.New(fault.Unsupported, "the pool cannot count the disk use of sandboxes").
		WithHint("simple quotas of btrfs came with Linux 6.7; in a directory of a btrfs of the host they must be on already")
}

// NewQuota implements [rootfs.Store].
func (s *Store) NewQuota(limit int64) (rootfs.Quota, error) {
	if limit == 0 && !s.squota {
		return 0, nil
	}
	if err := s.needQuota(); err != nil {
		return 0, err
	}
	if limit < 0 {
		return 0, fault.New(fault.Invalid, "a disk limit of %d bytes", limit)
	}
	s.mu.Lock()
	s.lastQuota++
	q := rootfs.Quota(s.lastQuota)
	s.mu.Unlock()
	if err := btrfs.CreateQgroup(s.pool, qgroup(q)); err != nil {
		return 0, rootfs.Errorf("make a quota: %w", err)
	}
	if limit > 0 {
		if err := s.limits.set(q, limit); err != nil {
			return 0, errors.Join(rootfs.Errorf("make a quota: %w", err), btrfs.RemoveQgroup(s.pool, qgroup(q)))
		}
	}
	return q, nil
}

// SetQuota implements [rootfs.Store].
func (s *Store) SetQuota(q rootfs.Quota, limit int64) error {
	if err := s.needQuota(); err != nil {
		return err
	}
	if q == 0 || limit < 0 {
		return fault.New(fault.Invalid, "limit quota %d to %d bytes", q, limit)
	}
	if err := s.limits.set(q, limit); err != nil {
		return rootfs.Errorf("limit quota %d: %w", q, err)
	}
	return nil
}

// slack is what a store's own writes in an upper may take past a limit.
const slack = 8 << 20

// pastLimit runs f, which makes or mounts an upper, and lets it go past the
// quota's limit where that is reached: a sandbox that has filled its disk must
// still be able to roll back. f is run a second time then.
func (s *Store) pastLimit(q rootfs.Quota, f func() error) error {
	err := f()
	if q == 0 || !errors.Is(err, unix.EDQUOT) && !errors.Is(err, errReadOnly) {
		return err
	}
	s.limits.mu.Lock()
	defer s.limits.mu.Unlock()
	used, limit, e := btrfs.QgroupUsage(s.fsid, qgroup(q))
	if e != nil || limit == 0 || used+slack < limit {
		return err // that was not the reason
	}
	if e := btrfs.LimitQgroup(s.pool, qgroup(q), max(used, limit)+slack); e != nil {
		return errors.Join(err, e)
	}
	err = f()
	return errors.Join(err, btrfs.LimitQgroup(s.pool, qgroup(q), limit))
}

// QuotaUsage implements [rootfs.Store].
func (s *Store) QuotaUsage(q rootfs.Quota) (rootfs.Usage, error) {
	if err := s.needQuota(); err != nil {
		return rootfs.Usage{}, err
	}
	used, limit, err := btrfs.QgroupUsage(s.fsid, qgroup(q))
	if err != nil {
		return rootfs.Usage{}, rootfs.Errorf("usage of quota %d: %w", q, err)
	}
	raised := s.limits.raised(q)
	if limit > 0 {
		limit -= raised
	}
	return rootfs.Usage{Bytes: max(used-raised, 0), Limit: limit}, nil
}

// Recount implements [rootfs.Store].
func (s *Store) Recount(id string, q rootfs.Quota) error {
	if err := s.recount(id, q); err != nil {
		return rootfs.Errorf("count %s in quota %d: %w", id, q, err)
	}
	return nil
}

func (s *Store) recount(id string, q rootfs.Quota) error {
	u, err := s.upper(id)
	if err != nil {
		return err
	}
	if err := u.lock(); err != nil {
		return err
	}
	defer u.mu.Unlock()
	if u.quota == q {
		return nil
	}
	if err := s.needQuota(); err != nil {
		return err
	}
	member, err := u.group()
	if err != nil {
		return err
	}
	// The new one first: at no instant is it uncounted.
	if q != 0 {
		if err := btrfs.AssignQgroup(s.pool, member, qgroup(q)); err != nil {
			return err
		}
	}
	if u.quota != 0 {
		if err := btrfs.UnassignQgroup(s.pool, member, qgroup(u.quota)); err != nil {
			if q != 0 {
				err = errors.Join(err, btrfs.UnassignQgroup(s.pool, member, qgroup(q)))
			}
			return err
		}
	}
	u.quota = q
	u.snap.Close()
	u.snap = btrfs.NewRequest(qgroup(q))
	return nil
}

// DropQuota implements [rootfs.Store].
func (s *Store) DropQuota(q rootfs.Quota) error {
	if q == 0 {
		return nil
	}
	if err := s.needQuota(); err != nil {
		return err
	}
	s.limits.drop(q)
	s.reaper.dropQuota(qgroup(q))
	return nil
}

// Usage implements [rootfs.Store].
func (s *Store) Usage(id string) (int64, error) {
	if err := s.needQuota(); err != nil {
		return 0, err
	}
	fd, err := s.openID(id)
	if err != nil {
		return 0, rootfs.Errorf("usage of %s: %w", id, err)
	}
	defer unix.Close(fd)
	info, err := btrfs.SubvolumeInfo(fd)
	if err != nil {
		return 0, rootfs.Errorf("usage of %s: %w", id, err)
	}
	used, _, err := btrfs.QgroupUsage(s.fsid, btrfs.QgroupID(info.ID))
	if err != nil {
		return 0, rootfs.Errorf("usage of %s: %w", id, err)
	}
	return used, nil
}
