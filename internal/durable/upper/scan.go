package upper

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"os"
	"strings"

	"github.com/sandtree/sandtree/internal/linux/btrfs"
)

// inode is what is known of an inode from the file system's own tables: sums of
// the items that hold its content, and of all that stat(2), its attributes and
// content are made from.
type inode struct {
	extents, items [16]byte
}

// scan reads the inodes of the snapshot that a directory is in. The source is
// empty if that is none: then nothing is known of files but by reading them.
func scan(dir int) (Source, map[uint64]inode, error) {
	if ok, err := btrfs.IsFilesystem(dir); err != nil || !ok {
		return Source{}, nil, err
	}
	info, err := btrfs.SubvolumeInfo(dir)
	if err != nil || !info.ReadOnly { // one that is not may have data that is in no item yet
		return Source{}, nil, err
	}
	fsid, err := btrfs.FSID(dir)
	if err != nil {
		return Source{}, nil, err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return Source{}, nil, err
	}
	t := &table{inodes: map[uint64]inode{}, extents: sha256.New(), items: sha256.New()}
	if err := btrfs.Items(dir, t.item); err != nil {
		return Source{}, nil, fmt.Errorf("read the tables of the file system: %w", err)
	}
	t.end()
	return Source{FSID: fsid, Boot: strings.TrimSpace(string(boot))}, t.inodes, nil
}

// table collects inodes from items, which come in order: those of one inode are
// behind each other, its own first.
type table struct {
	inodes         map[uint64]inode
	current        uint64
	generation     [8]byte
	extents, items hash.Hash
	some           bool // extents
}

func (t *table) item(it btrfs.Item) error {
	switch it.Type {
	case btrfs.InodeItem:
		t.end()
		if len(it.Data) < len(t.generation) {
			return fmt.Errorf("inode item of %d bytes", len(it.Data))
		}
		t.current = it.Object
		// The first field is the transaction that made the inode.
		copy(t.generation[:], it.Data)
	case btrfs.ExtentData:
		if !t.some {
			t.extents.Write(t.generation[:])
			t.some = true
		}
		add(t.extents, it)
	case btrfs.XattrItem:
	default: // names are listed, not summed up
		return nil
	}
	if it.Object != t.current {
		return fmt.Errorf("item of inode %d behind inode %d", it.Object, t.current)
	}
	add(t.items, it)
	return nil
}

func add(h hash.Hash, it btrfs.Item) {
	var key [16]byte
	binary.LittleEndian.PutUint64(key[:], it.Offset)
	binary.LittleEndian.PutUint32(key[8:], it.Type)
	binary.LittleEndian.PutUint32(key[12:], uint32(len(it.Data)))
	h.Write(key[:])
	h.Write(it.Data)
}

// end finishes the sums of an inode.
func (t *table) end() {
	if t.current == 0 {
		return
	}
	var i inode
	var sum [sha256.Size]byte
	copy(i.items[:], t.items.Sum(sum[:0]))
	t.items.Reset()
	if t.some {
		copy(i.extents[:], t.extents.Sum(sum[:0]))
		t.extents.Reset()
	}
	t.inodes[t.current] = i
	t.current, t.some = 0, false
}
