package btrfs

import (
	"encoding/binary"
)

// Types of items in the tree of a subvolume (uapi/linux/btrfs_tree.h).
const (
	InodeItem  = 1              // struct btrfs_inode_item
	XattrItem  = 24             // struct btrfs_dir_item, one or more
	ExtentData = typeExtentData // struct btrfs_file_extent_item; the key's offset is that in the file
)

// Item is an item of a subvolume's tree with its key. Data is valid only while
// it is visited.
type Item struct {
	Object uint64 // an inode's number
	Type   uint32
	Offset uint64
	Data   []byte
}

// scanArgs is struct btrfs_ioctl_search_args_v2 with a buffer for many items.
type scanArgs struct {
	_                    uint64 // tree; 0 is the one that the descriptor is in
	minObject, maxObject uint64
	minOffset, maxOffset uint64
	_, maxTransid        uint64
	minType, maxType     uint32
	items                uint32
	_                    uint32
	_                    [4]uint64
	size                 uint64
	buf                  [512 << 10]byte
}

// Items visits all items of the subvolume that fd is in, in the order of their
// keys. Data that has not been written back yet is not seen; in a read-only
// snapshot there is none.
func Items(fd int, visit func(Item) error) error {
	const all = ^uint64(0)
	a := &scanArgs{maxObject: all, maxOffset: all, maxTransid: all, maxType: 255}
	for {
		a.items, a.size = ^uint32(0), uint64(len(a.buf))
		if err := ioctl(fd, iocTreeSearchV2, "", a); err != nil {
			return err
		}
		if a.items == 0 {
			return nil
		}
		rest := a.buf[:]
		var last Item
		for range a.items {
			n := binary.NativeEndian.Uint32(rest[28:])
			last = Item{
				Object: binary.NativeEndian.Uint64(rest[8:]),
				Offset: binary.NativeEndian.Uint64(rest[16:]),
				Type:   binary.NativeEndian.Uint32(rest[24:]),
				Data:   rest[itemHeaderSize : itemHeaderSize+n],
			}
			rest = rest[itemHeaderSize+n:]
			if err := visit(last); err != nil {
				return err
			}
		}
		// The key behind the last one.
		a.minObject, a.minType, a.minOffset = last.Object, last.Type, last.Offset+1
		if a.minOffset == 0 {
			if a.minType++; a.minType > 255 {
				a.minType = 0
				if a.minObject++; a.minObject == 0 {
					return nil
				}
			}
		}
	}
}
