package erofs

import (
	"encoding/binary"
	"hash/crc32"
)

// Sizes and numbers of the on-disk format (fs/erofs/erofs_fs.h).
const (
	// BlockSize is the block size of every image, in bytes.
	BlockSize = 4096

	superOffset = 1024
	superSize   = 128
	superMagic  = 0xE0F5E1E2

	slotSize     = 32 // unit of inode numbers
	inodeSize    = 64 // extended form
	direntSize   = 12
	xattrHeader  = 12
	xattrEntry   = 4
	maxNameLen   = 255
	maxXattrSize = 1<<16 - 1

	compatChecksum = 0x1
	compatMtime    = 0x2
	incompatChunks = 0x4

	layoutExtended = 1
	layoutPlain    = 0 << 1
	layoutInline   = 2 << 1
	layoutChunks   = 4 << 1
	nullBlock      = 0xFFFFFFFF
	maxBlocks      = 1<<32 - 2 // block addresses have 32 bits
	maxXattrIcount = 1<<16 - 1
	rootOffset     = superOffset + superSize
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// superblock is what a reader needs to find the rest.
type superblock struct {
	root   uint16 // number of the root's inode
	chunks bool   // some inode is chunk-based
	inodes uint64
	blocks uint32
	uuid   [16]byte
}

// put writes the superblock into block, which is the image's first.
func (s *superblock) put(block []byte) {
	b := block[superOffset : superOffset+superSize]
	le := binary.LittleEndian
	le.PutUint32(b[0:], superMagic)
	le.PutUint32(b[8:], compatChecksum|compatMtime)
	b[12] = 12 // log2 of BlockSize
	le.PutUint16(b[14:], s.root)
	le.PutUint64(b[16:], s.inodes)
	le.PutUint32(b[36:], s.blocks)
	copy(b[48:64], s.uuid[:])
	if s.chunks {
		le.PutUint32(b[80:], incompatChunks)
	}
	// The checksum covers the block from the superblock on, with its own
	// field zero. The kernel's crc32c is not inverted at the end, Go's is.
	le.PutUint32(b[4:], 0)
	le.PutUint32(b[4:], ^crc32.Checksum(block[superOffset:BlockSize], castagnoli))
}

// inode is one extended inode.
type inode struct {
	layout uint16 // layoutPlain, layoutInline or layoutChunks
	icount uint16 // xattr area, 0 if none
	mode   uint16
	size   uint64
	union  uint32 // block address, device number or chunk format
	ino    uint32
	uid    uint32
	gid    uint32
	sec    int64
	nsec   uint32
	nlink  uint32
}

// append adds the on-disk form.
func (i *inode) append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint16(b, layoutExtended|i.layout)
	b = le.AppendUint16(b, i.icount)
	b = le.AppendUint16(b, i.mode)
	b = le.AppendUint16(b, 0)
	b = le.AppendUint64(b, i.size)
	b = le.AppendUint32(b, i.union)
	b = le.AppendUint32(b, i.ino)
	b = le.AppendUint32(b, i.uid)
	b = le.AppendUint32(b, i.gid)
	b = le.AppendUint64(b, uint64(i.sec))
	b = le.AppendUint32(b, i.nsec)
	b = le.AppendUint32(b, i.nlink)
	return append(b, make([]byte, 16)...)
}

// deviceNumber packs a device as the kernel's new_encode_dev does.
func deviceNumber(major, minor uint32) uint32 {
	return minor&0xff | major<<8 | (minor&^0xff)<<12
}
