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

// inode is what is known of an inode from the file system's own tables.
type inode struct {
	generation uint64
	extents    [16]byte
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
	t := &table{inodes: map[uint64]inode{}, sum: sha256.New()}
	if err := btrfs.Items(dir, t.item); err != nil {
		return Source{}, nil, fmt.Errorf("read the tables of the file system: %w", err)
	}
	t.end()
	return Source{FSID: fsid, Boot: strings.TrimSpace(string(boot))}, t.inodes, nil
}

// table collects inodes from items, which come in order.
type table struct {
	inodes  map[uint64]inode
	current uint64 // whose extents are summed up
	sum     hash.Hash
	some    bool
}

func (t *table) item(it btrfs.Item) error {
	switch it.Type {
	case btrfs.InodeItem:
		if len(it.Data) < 8 {
			return fmt.Errorf("inode item of %d bytes", len(it.Data))
		}
		// The generation is the first field: the transaction that made the inode.
		t.inodes[it.Object] = inode{generation: binary.LittleEndian.Uint64(it.Data)}
	case btrfs.ExtentData:
		if it.Object != t.current || !t.some {
			t.end()
			t.current, t.some = it.Object, true
		}
		var key [12]byte
		binary.LittleEndian.PutUint64(key[:], it.Offset)
		binary.LittleEndian.PutUint32(key[8:], uint32(len(it.Data)))
		t.sum.Write(key[:])
		t.sum.Write(it.Data)
	}
	return nil
}

// end finishes the sum of an inode's extents.
func (t *table) end() {
	if !t.some {
		return
	}
	i := t.inodes[t.current]
	copy(i.extents[:], t.sum.Sum(nil))
	t.inodes[t.current] = i
	t.sum.Reset()
	t.some = false
}
