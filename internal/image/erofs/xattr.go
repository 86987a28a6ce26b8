package erofs

import (
	"encoding/binary"
	"maps"
	"slices"
	"strings"

	"github.com/sandtree/sandtree/internal/fault"
)

// namespaces are the xattr names the format has an index for. A name is
// matched whole or by prefix.
var namespaces = []struct {
	prefix string
	index  byte
	whole  bool
}{
	{"user.", 1, false},
	{"system.posix_acl_access", 2, true},
	{"system.posix_acl_default", 3, true},
	{"trusted.", 4, false},
	{"security.", 6, false},
}

// splitXattr returns the format's index of a name and what follows it.
func splitXattr(name string) (index byte, rest string, ok bool) {
	for _, ns := range namespaces {
		rest, found := strings.CutPrefix(name, ns.prefix)
		if found && ns.whole == (rest == "") {
			return ns.index, rest, true
		}
	}
	return 0, "", false
}

// KeepsXattr reports whether an image can hold an xattr of that name: those
// in user., trusted. and security., and POSIX ACLs.
func KeepsXattr(name string) bool {
	_, rest, ok := splitXattr(name)
	return ok && len(rest) <= maxNameLen && !strings.Contains(rest, "\x00")
}

// appendXattrs returns the inline xattr area of an inode and its i_xattr_icount.
func appendXattrs(attrs map[string]string) (area []byte, icount uint16, err error) {
	if len(attrs) == 0 {
		return nil, 0, nil
	}
	area = make([]byte, xattrHeader)
	for _, name := range slices.Sorted(maps.Keys(attrs)) {
		index, rest, ok := splitXattr(name)
		if !ok || len(rest) > maxNameLen {
			return nil, 0, fault.New(fault.Invalid, "xattr %.80q: the image format has no place for this name", name)
		}
		value := attrs[name]
		if len(value) > maxXattrSize {
			return nil, 0, fault.New(fault.Invalid, "xattr %s: value of %d bytes, %d are allowed", name, len(value), maxXattrSize)
		}
		area = append(area, byte(len(rest)), index)
		area = binary.LittleEndian.AppendUint16(area, uint16(len(value)))
		area = append(area, rest...)
		area = append(area, value...)
		area = append(area, make([]byte, -len(area)&(xattrEntry-1))...)
	}
	n := 1 + (len(area)-xattrHeader)/4
	if n > maxXattrIcount {
		return nil, 0, fault.New(fault.Invalid, "xattrs of %d bytes on one file: more than the image format holds", len(area))
	}
	return area, uint16(n), nil
}
