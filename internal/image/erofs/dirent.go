package erofs

import (
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"
)

// dirent is one entry of a directory that is being written.
type dirent struct {
	name string
	nid  uint64
	kind byte
}

// fileType gives the FT_* number of a mode.
func fileType(mode uint32) byte {
	switch mode & unix.S_IFMT {
	case unix.S_IFREG:
		return 1
	case unix.S_IFDIR:
		return 2
	case unix.S_IFCHR:
		return 3
	case unix.S_IFBLK:
		return 4
	case unix.S_IFIFO:
		return 5
	case unix.S_IFSOCK:
		return 6
	case unix.S_IFLNK:
		return 7
	}
	return 0
}

// entryNames returns the names of a directory in the order of the format: by
// bytes, the two dots among the others.
func entryNames(n *Node) []string {
	names := append(n.Names(), ".", "..")
	slices.Sort(names)
	return names
}

// dirSize returns the i_size of a directory with these names: whole blocks,
// and the used part of the last.
func dirSize(names []string) int64 {
	var blocks int64
	used := 0
	for _, n := range names {
		need := direntSize + len(n)
		if used+need > BlockSize {
			blocks++
			used = 0
		}
		used += need
	}
	return blocks*BlockSize + int64(used)
}

// appendDir adds the content of a directory, dirSize bytes. Each block starts
// with its entries; the names follow, and nameoff of the first entry tells
// how many entries there are.
func appendDir(b []byte, entries []dirent) []byte {
	for len(entries) > 0 {
		n, used := 0, 0
		for n < len(entries) && used+direntSize+len(entries[n].name) <= BlockSize {
			used += direntSize + len(entries[n].name)
			n++
		}
		off := n * direntSize
		for _, e := range entries[:n] {
			b = binary.LittleEndian.AppendUint64(b, e.nid)
			b = binary.LittleEndian.AppendUint16(b, uint16(off))
			b = append(b, e.kind, 0)
			off += len(e.name)
		}
		for _, e := range entries[:n] {
			b = append(b, e.name...)
		}
		if entries = entries[n:]; len(entries) > 0 {
			b = append(b, make([]byte, BlockSize-used)...)
		}
	}
	return b
}
