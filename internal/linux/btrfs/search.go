package btrfs

import (
	"encoding/binary"
	"slices"
	"sync"
)

// searchArgs is struct btrfs_ioctl_search_args_v2 with its buffer.
type searchArgs struct {
	tree                 uint64
	minObject, maxObject uint64
	minOffset, maxOffset uint64
	_, maxTransid        uint64
	minType, maxType     uint32
	items                uint32
	_                    uint32
	_                    [4]uint64
	size                 uint64
	buf                  [16 << 10]byte
}

const (
	itemHeaderSize = 32
	typeExtentData = 108
	typeRootItem   = 132
	rootTree       = 1
)

// item is one item of a metadata tree.
type item struct {
	object, offset uint64
	kind           uint32
	data           []byte
}

// searches are requests to use again: a comparison makes many.
var searches = sync.Pool{New: func() any { return new(searchArgs) }}

// search calls visit for each item of one object and type in a tree, in order
// of offset, until visit returns false. An item's data is valid only meanwhile.
// Tree 0 is the subvolume that fd is in.
func search(fd int, tree, object uint64, kind uint32, visit func(item) bool) error {
	a := searches.Get().(*searchArgs)
	defer searches.Put(a)
	a.tree, a.minObject, a.maxObject = tree, object, object
	a.minOffset, a.maxOffset, a.maxTransid = 0, ^uint64(0), ^uint64(0)
	a.minType, a.maxType = kind, kind
	for {
		a.items, a.size = ^uint32(0), uint64(len(a.buf))
		if err := ioctl(fd, iocTreeSearchV2, "", a); err != nil {
			return err
		}
		if a.items == 0 {
			return nil
		}
		rest, last := a.buf[:], uint64(0)
		for range a.items {
			n := binary.NativeEndian.Uint32(rest[28:])
			it := item{
				object: binary.NativeEndian.Uint64(rest[8:]),
				offset: binary.NativeEndian.Uint64(rest[16:]),
				kind:   binary.NativeEndian.Uint32(rest[24:]),
				data:   rest[itemHeaderSize : itemHeaderSize+n],
			}
			rest, last = rest[itemHeaderSize+n:], it.offset
			if it.object == object && it.kind == kind && !visit(it) {
				return nil
			}
		}
		if last == ^uint64(0) {
			return nil
		}
		a.minOffset = last + 1
	}
}

// Exists reports whether the tree of a subvolume still takes space: after
// [Destroy] it does until the kernel's cleaner has dropped it.
func Exists(fd int, subvolume uint64) (bool, error) {
	found := false
	err := search(fd, rootTree, subvolume, typeRootItem, func(item) bool { found = true; return false })
	return found, err
}

// extent is an item with the file offset it stands at.
type extent struct {
	offset uint64
	data   []byte
}

// SameExtents reports whether two regular files, each given by a descriptor in
// its subvolume and its inode number, consist of the very same extents. Then
// their content is equal, without reading it; if not it may still be equal.
// Data that has not been written back yet is not seen: sync first.
func SameExtents(fdA int, inoA uint64, fdB int, inoB uint64) (bool, error) {
	a, err := extents(fdA, inoA)
	if err != nil {
		return false, err
	}
	b, err := extents(fdB, inoB)
	if err != nil {
		return false, err
	}
	return slices.EqualFunc(a, b, func(x, y extent) bool {
		return x.offset == y.offset && slices.Equal(x.data, y.data)
	}), nil
}

func extents(fd int, ino uint64) ([]extent, error) {
	var es []extent
	err := search(fd, 0, ino, typeExtentData, func(it item) bool {
		es = append(es, extent{it.offset, slices.Clone(it.data)})
		return true
	})
	return es, err
}
