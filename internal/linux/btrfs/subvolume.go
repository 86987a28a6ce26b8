// Package btrfs speaks the ioctls of btrfs that a pool of subvolumes needs:
// subvolumes and snapshots, deletion, commit, resize, simple quotas (Linux
// 6.7), and reading the metadata trees (uapi/linux/btrfs.h and btrfs_tree.h).
//
// Descriptors are of directories on the file system; names are single path
// components. All calls need CAP_SYS_ADMIN.
package btrfs

import (
	"errors"
	"fmt"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// QgroupID names a quota group: its level in the upper 16 bits, and below a
// subvolume's id (level 0) or a number of the caller's.
type QgroupID uint64

// Level1 makes the id of a group of level 1, which counts several subvolumes.
func Level1(n uint64) QgroupID { return QgroupID(1<<48 | n) }

// String is the kernel's own notation in sysfs, for example "1_7".
func (q QgroupID) String() string { return fmt.Sprintf("%d_%d", uint64(q)>>48, uint64(q)&(1<<48-1)) }

const (
	subvolRDONLY        = 1 << 1
	subvolQgroupInherit = 1 << 2
	maxName             = 255
)

// volArgs is struct btrfs_ioctl_vol_args_v2.
type volArgs struct {
	fd      int64
	_       uint64 // transid
	flags   uint64
	size    uint64
	inherit uint64
	_       [2]uint64
	name    [4040]byte
}

// volArgs1 is struct btrfs_ioctl_vol_args.
type volArgs1 struct {
	_    int64 // fd
	name [4088]byte
}

// inherit is struct btrfs_qgroup_inherit with one group.
type inherit struct {
	_      uint64 // flags
	groups uint64
	_      [2]uint64 // copies of counters
	_      [5]uint64 // limit
	group  uint64
}

const inheritSize = 80

// Request is a reusable request to make subvolumes, so that one made ahead
// costs nothing but the ioctl itself. It is not safe for concurrent use.
type Request struct {
	args volArgs
	inh  inherit
	pin  runtime.Pinner
}

// NewRequest prepares for subvolumes that count in a quota group from their
// first byte; group 0 means in none.
func NewRequest(group QgroupID) *Request {
	r := &Request{}
	if group != 0 {
		r.pin.Pin(&r.inh)
		r.inh = inherit{groups: 1, group: uint64(group)}
		r.args.flags = subvolQgroupInherit
		r.args.size = inheritSize
		r.args.inherit = address(&r.inh)
	}
	return r
}

// Close releases the request's memory.
func (r *Request) Close() { r.pin.Unpin() }

// Create makes an empty subvolume in the directory dir.
func (r *Request) Create(dir int, name string) error {
	if err := r.setName(name); err != nil {
		return err
	}
	r.args.fd = 0
	r.args.flags &^= subvolRDONLY
	err := ioctl(dir, iocSubvolCreate2, name, &r.args)
	runtime.KeepAlive(r)
	return err
}

// Snapshot makes a snapshot of the subvolume whose root src is, in the
// directory dir. The kernel writes src's dirty data first, then commits the
// current transaction.
func (r *Request) Snapshot(src, dir int, name string, readonly bool) error {
	if err := r.setName(name); err != nil {
		return err
	}
	r.args.fd = int64(src)
	r.args.flags &^= subvolRDONLY
	if readonly {
		r.args.flags |= subvolRDONLY
	}
	err := ioctl(dir, iocSnapCreateV2, name, &r.args)
	runtime.KeepAlive(r)
	return err
}

// Flush writes the dirty data of the subvolume whose root src is, and no other's,
// and waits for that, without a commit. No call does so, but a snapshot begins
// with it, before it looks whether its name is taken (btrfs_mksnapshot in
// fs/btrfs/ioctl.c): taken is such a name in the directory dir.
func (r *Request) Flush(src, dir int, taken string) error {
	err := r.Snapshot(src, dir, taken, true)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

func (r *Request) setName(name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	n := copy(r.args.name[:], name)
	clear(r.args.name[n : maxName+1])
	return nil
}

// Destroy deletes the subvolume name in dir. The name is gone at once; its
// space is freed by the kernel's cleaner later, see [Exists].
func Destroy(dir int, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	a := &volArgs1{}
	copy(a.name[:], name)
	return ioctl(dir, iocSnapDestroy, name, a)
}

func checkName(name string) error {
	if name == "" || name == "." || name == ".." || len(name) > maxName || strings.ContainsAny(name, "/\x00") {
		return fmt.Errorf("subvolume name %q: %w", name, unix.EINVAL)
	}
	return nil
}

// subvolInfo is struct btrfs_ioctl_get_subvol_info_args.
type subvolInfo struct {
	treeid     uint64
	_          [256]byte // name
	_          [2]uint64 // of the parent: tree and directory
	generation uint64
	flags      uint64
	_          [3][16]byte  // ids of itself and those it came from
	_          [4]uint64    // transactions
	_          [4][2]uint64 // times
	_          [8]uint64
}

// Info describes a subvolume.
type Info struct {
	// ID is the number of its tree, never used twice in one file system.
	ID uint64
	// Generation is the transaction that changed it last.
	Generation uint64
	ReadOnly   bool
}

// SubvolumeInfo describes the subvolume that fd is in (Linux 4.18).
func SubvolumeInfo(fd int) (Info, error) {
	a := &subvolInfo{}
	if err := ioctl(fd, iocSubvolInfo, "", a); err != nil {
		return Info{}, err
	}
	const rootSubvolRDONLY = 1
	return Info{ID: a.treeid, Generation: a.generation, ReadOnly: a.flags&rootSubvolRDONLY != 0}, nil
}
