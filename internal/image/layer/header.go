package layer

import (
	"archive/tar"
	"math"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/image/erofs"
)

// xattrRecord is the prefix of PAX records that hold xattrs.
const xattrRecord = "SCHILY.xattr."

// kinds maps tar's types to those of inode(7).
var kinds = map[byte]uint32{
	tar.TypeReg:       unix.S_IFREG,
	tar.TypeCont:      unix.S_IFREG,
	tar.TypeGNUSparse: unix.S_IFREG,
	tar.TypeDir:       unix.S_IFDIR,
	tar.TypeSymlink:   unix.S_IFLNK,
	tar.TypeChar:      unix.S_IFCHR,
	tar.TypeBlock:     unix.S_IFBLK,
	tar.TypeFifo:      unix.S_IFIFO,
}

// nodeOf makes the node of a tar header, without content.
func nodeOf(h *tar.Header) (*erofs.Node, error) {
	kind, ok := kinds[h.Typeflag]
	if !ok {
		return nil, fault.New(fault.Invalid, "entry of type %q, which layers do not have", h.Typeflag)
	}
	n := &erofs.Node{Mode: kind | uint32(h.Mode)&0o7777}
	if kind == unix.S_IFDIR {
		n = erofs.NewDir(uint32(h.Mode))
	}
	// The highest number means "leave it" to chown(2).
	if h.Uid < 0 || h.Uid >= math.MaxUint32 || h.Gid < 0 || h.Gid >= math.MaxUint32 {
		return nil, fault.New(fault.Invalid, "owner %d:%d: not numbers of a user and a group", h.Uid, h.Gid)
	}
	n.UID, n.GID = uint32(h.Uid), uint32(h.Gid)
	n.Sec, n.Nsec = h.ModTime.Unix(), uint32(h.ModTime.Nanosecond())
	switch kind {
	case unix.S_IFREG:
		if h.Size > erofs.MaxFileSize {
			return nil, fault.New(fault.Invalid, "size of %d bytes: files of up to %d are possible", h.Size, int64(erofs.MaxFileSize))
		}
		n.Size = h.Size
	case unix.S_IFLNK:
		if h.Linkname == "" || len(h.Linkname) >= unix.PathMax || strings.Contains(h.Linkname, "\x00") {
			return nil, fault.New(fault.Invalid, "symbolic link with a target of %d bytes, or one with a NUL", len(h.Linkname))
		}
		n.Target = h.Linkname
	case unix.S_IFCHR, unix.S_IFBLK:
		if h.Devmajor < 0 || h.Devmajor >= 1<<12 || h.Devminor < 0 || h.Devminor >= 1<<20 {
			return nil, fault.New(fault.Invalid, "device %d:%d: no number of a device", h.Devmajor, h.Devminor)
		}
		n.Major, n.Minor = uint32(h.Devmajor), uint32(h.Devminor)
	}
	for record, value := range h.PAXRecords {
		name, ok := strings.CutPrefix(record, xattrRecord)
		// Marks of overlayfs would make a file of a layer stand for another.
		// Names of other systems (com.apple.*) mean nothing here.
		if !ok || !erofs.KeepsXattr(name) || strings.HasPrefix(name, "trusted.overlay.") {
			continue
		}
		if len(value) > 1<<16-1 {
			return nil, fault.New(fault.Invalid, "xattr %.80q: value of %d bytes", name, len(value))
		}
		if n.Xattrs == nil {
			n.Xattrs = map[string]string{}
		}
		n.Xattrs[name] = value
	}
	return n, nil
}
