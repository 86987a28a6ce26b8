package upper

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/durable/cbor"
	"github.com/sandtree/sandtree/internal/durable/chunk"
	"github.com/sandtree/sandtree/internal/durable/content"
)

// Manifest describes a tree of files.
type Manifest struct {
	// Source is where it was captured.
	Source Source `cbor:"o"`
	// Segments are chunks that are each a CBOR array of entries.
	Segments []chunk.ID `cbor:"s"`
	// Entries counts names, the root's included.
	Entries int64 `cbor:"n"`
	// Bytes counts the content of all files.
	Bytes int64 `cbor:"b"`
}

// Source names a file system, so that inode numbers and extents of two manifests
// can be compared. It is empty if they cannot.
type Source struct {
	// FSID is the file system's id, Boot the machine's boot id
	// (/proc/sys/kernel/random/boot_id): after a crash the file system may have
	// gone back in time, and have used a transaction's number twice.
	FSID string `cbor:"f"`
	Boot string `cbor:"b"`
}

// Entry is a name in a directory. The first entry is the root. Every other
// stands behind its directory's, and what is in a directory right behind it: the
// order is that of a walk, names sorted by their bytes.
type Entry struct {
	// Ino is the number of the inode. Entries with one number are one file: the
	// first of them has what follows Name, and the others nothing of it.
	Ino uint64 `cbor:"i"`
	// Dir is the number of the directory; 0 for the root.
	Dir  uint64 `cbor:"d"`
	Name string `cbor:"n"`
	// Again is set for a further name of a file.
	Again bool `cbor:"h"`

	Mode uint32 `cbor:"m"` // st_mode
	UID  uint32 `cbor:"u"` // inside
	GID  uint32 `cbor:"g"`
	Rdev uint64 `cbor:"r"` // makedev, of devices
	// Accessed and Modified are times.
	Accessed Time `cbor:"a"`
	Modified Time `cbor:"t"`
	// Link is what a symbolic link holds.
	Link string `cbor:"l"`
	// Xattrs are the extended attributes; many are in XattrsIn instead, a CBOR
	// map.
	Xattrs   map[string][]byte `cbor:"x"`
	XattrsIn *content.Content  `cbor:"y"`
	// Content is that of a regular file.
	Content *content.Content `cbor:"c"`
	// Extents and Items tell, at the next capture, whether content and file are
	// still the same: checksums of what the file system has of the inode.
	Extents [16]byte `cbor:"e"`
	Items   [16]byte `cbor:"q"`
}

// Time is a time since 1970.
type Time struct {
	Sec  int64 `cbor:"s"`
	Nsec int64 `cbor:"n"`
}

func timeOf(t unix.Timespec) Time { return Time{t.Sec, t.Nsec} }

func (t Time) timespec() unix.Timespec { return unix.Timespec{Sec: t.Sec, Nsec: t.Nsec} }

const (
	// maxID is the largest id of a user or group inside.
	maxID = 65535
	// inlineXattrs is how many bytes of attributes stand in an entry, and
	// maxXattrs how many a file may have.
	inlineXattrs = 8 << 10
	maxXattrs    = 64 << 20
)

// check tells what no entry can have.
func (e *Entry) check() error {
	bad := func(why string) error { return fmt.Errorf("%w: file %.300q: %s", chunk.ErrCorrupt, e.Name, why) }
	switch {
	case e.Ino == 0:
		return bad("no number")
	case e.Dir == 0 && (e.Name != "" || e.Again || e.Mode&unix.S_IFMT != unix.S_IFDIR):
		return bad("it is in no directory")
	case e.Dir != 0 && (e.Name == "" || e.Name == "." || e.Name == ".." || len(e.Name) > unix.NAME_MAX || strings.ContainsAny(e.Name, "/\x00")):
		return bad("that is no name")
	case e.UID > maxID || e.GID > maxID:
		return bad(fmt.Sprintf("owned by %d:%d", e.UID, e.GID))
	case e.Accessed.Nsec < 0 || e.Accessed.Nsec > 999_999_999 || e.Modified.Nsec < 0 || e.Modified.Nsec > 999_999_999:
		return bad("that is no time")
	case e.Mode&^(unix.S_IFMT|0o7777) != 0:
		return bad(fmt.Sprintf("mode %#o", e.Mode))
	case e.Xattrs != nil && e.XattrsIn != nil:
		return bad("attributes of two kinds")
	}
	if e.Again {
		if e.Mode != 0 || e.Content != nil {
			return bad("a further name with attributes")
		}
		return nil
	}
	kind := e.Mode & unix.S_IFMT
	switch kind {
	case unix.S_IFREG, unix.S_IFDIR, unix.S_IFLNK, unix.S_IFIFO, unix.S_IFSOCK, unix.S_IFCHR, unix.S_IFBLK:
	default:
		return bad(fmt.Sprintf("mode %#o", e.Mode))
	}
	if (kind == unix.S_IFREG) != (e.Content != nil) {
		return bad("content, or none")
	}
	if (kind == unix.S_IFLNK) != (e.Link != "") || strings.ContainsRune(e.Link, 0) || len(e.Link) >= unix.PathMax {
		return bad("that is no link")
	}
	for name := range e.Xattrs {
		if name == "" || strings.ContainsRune(name, 0) {
			return bad("an attribute without a name")
		}
	}
	for _, c := range []*content.Content{e.Content, e.XattrsIn} {
		if c != nil {
			if err := c.Check(); err != nil {
				return fmt.Errorf("file %q: %w", e.Name, err)
			}
		}
	}
	return nil
}

// Check tells what no manifest can have.
func (m *Manifest) Check() error {
	if m.Entries < 1 || m.Bytes < 0 || len(m.Segments) == 0 {
		return fmt.Errorf("%w: a tree of %d files", chunk.ErrCorrupt, m.Entries)
	}
	return nil
}

// Each calls visit for all entries, in order. Segments for which enter returns
// false are not read; nil reads all.
func (m *Manifest) Each(g content.Getter, enter func(chunk.ID) bool, visit func(*Entry) error) error {
	if err := m.Check(); err != nil {
		return err
	}
	var buf []byte
	for _, id := range m.Segments {
		if enter != nil && !enter(id) {
			continue
		}
		var err error
		if buf, err = g.Append(buf[:0], id); err != nil {
			return err
		}
		var es []Entry
		if err := cbor.Unmarshal(buf, &es); err != nil {
			return fmt.Errorf("%w: segment %s: %w", chunk.ErrCorrupt, id, err)
		}
		for i := range es {
			if err := es[i].check(); err != nil {
				return err
			}
			if err := visit(&es[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// Contents are the contents that an entry refers to.
func (e *Entry) Contents() (out []*content.Content) {
	for _, c := range []*content.Content{e.Content, e.XattrsIn} {
		if c != nil {
			out = append(out, c)
		}
	}
	return out
}
