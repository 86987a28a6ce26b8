package pool

import (
	"bytes"
	"compress/gzip"
	"crypto/rand"
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// empty is an empty btrfs of emptySize bytes, written by generate.sh in the
// form that is described there.
//
//go:embed empty.img.gz
var empty []byte

// emptySize is the size of the embedded file system.
const emptySize = 128 << 20

// Offsets in struct btrfs_super_block (uapi/linux/btrfs_tree.h).
const (
	superSize         = 4096
	superFSID         = 32
	superBytenr       = 48
	superMagic        = 64
	superIncompat     = 188
	superMetadataUUID = 571
	// incompatMetadataUUID says that the blocks of the trees carry another id
	// than the file system (Linux 5.0).
	incompatMetadataUUID = 1 << 10
)

// writeEmpty writes an empty file system with an id of its own to w, which
// reads as zeros so far. All blocks of the trees carry the id of the embedded
// image; only the copies of the superblock have the new one, and say so. That
// is what btrfstune -m does to a file system, and it makes two pools different
// to the kernel, to udev, and in sysfs.
func writeEmpty(w io.WriterAt) error {
	z, err := gzip.NewReader(bytes.NewReader(empty))
	if err != nil {
		return fmt.Errorf("embedded file system: %w", err)
	}
	var id [16]byte
	rand.Read(id[:])
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80 // UUID version 4
	for {
		var at, n uint64
		err := binary.Read(z, binary.LittleEndian, &at)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = binary.Read(z, binary.LittleEndian, &n)
		}
		if err != nil || at+n > emptySize {
			return fmt.Errorf("embedded file system: bad record at %d of %d bytes: %w", at, n, errors.Join(err, io.ErrUnexpectedEOF))
		}
		data := make([]byte, n)
		if _, err := io.ReadFull(z, data); err != nil {
			return fmt.Errorf("embedded file system: %w", err)
		}
		if isSuper(data, at) {
			setFSID(data, id)
		}
		if _, err := w.WriteAt(data, int64(at)); err != nil {
			return err
		}
	}
}

func isSuper(b []byte, at uint64) bool {
	return len(b) == superSize && string(b[superMagic:superMagic+8]) == "_BHRfS_M" &&
		binary.LittleEndian.Uint64(b[superBytenr:]) == at
}

// setFSID gives a superblock another id and makes its checksum right again.
func setFSID(super []byte, id [16]byte) {
	copy(super[superMetadataUUID:superMetadataUUID+16], super[superFSID:])
	copy(super[superFSID:superFSID+16], id[:])
	flags := binary.LittleEndian.Uint64(super[superIncompat:])
	binary.LittleEndian.PutUint64(super[superIncompat:], flags|incompatMetadataUUID)
	clear(super[:32])
	sum := crc32.Checksum(super[32:], crc32.MakeTable(crc32.Castagnoli))
	binary.LittleEndian.PutUint32(super, sum)
}
