// Package xattr keeps the extended attributes of files that are made anew: those of
// users, and access control lists (xattr(7), acl(5)).
package xattr

import (
	"bytes"
	"encoding/binary"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// Attribute is one of a file's.
type Attribute struct {
	Name  string
	Value []byte
}

const (
	userPrefix = "user."
	aclPrefix  = "system.posix_acl_"
)

func kept(name string) bool {
	return strings.HasPrefix(name, userPrefix) || strings.HasPrefix(name, aclPrefix)
}

// most is how many bytes the attributes of a file may have together with their names: as many as
// the kernel lists names (XATTR_LIST_MAX). All are in the memory of who reads them.
const most = 64 << 10

func tooMany() error {
	return fault.New(fault.Uncapturable, "it has more than %d KiB of extended attributes", most>>10).WithHint("remove some of them (setfattr -x)")
}

// Read reads those of a file, in the order of the file system. Path is not followed at its
// end, unless it is one of /proc/PID/fd. A file system without attributes has none. More than 64 KiB
// are [fault.Uncapturable].
func Read(path string) ([]Attribute, error) {
	list, get := calls(path)
	names, err := whole(func(b []byte) (int, error) { return list(path, b) })
	if err == unix.ENOTSUP || err == unix.ENOSYS {
		return nil, nil
	}
	if err == unix.E2BIG {
		return nil, tooMany()
	}
	if err != nil || len(names) == 0 {
		return nil, err
	}
	var out []Attribute
	size := 0
	for name := range bytes.SplitSeq(bytes.TrimSuffix(names, []byte{0}), []byte{0}) {
		if !kept(string(name)) {
			continue
		}
		v, err := whole(func(b []byte) (int, error) { return get(path, string(name), b) })
		if err == unix.ENODATA { // it was listed, and is of nobody who reads
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, Attribute{string(name), v})
		if size += len(name) + len(v); size > most {
			return nil, tooMany()
		}
	}
	return out, nil
}

// calls are those that do not follow a path at its end, but for a link of /proc that leads
// to an open file.
func calls(path string) (list func(string, []byte) (int, error), get func(string, string, []byte) (int, error)) {
	if isOpen(path) {
		return unix.Listxattr, unix.Getxattr
	}
	return unix.Llistxattr, unix.Lgetxattr
}

// isOpen reports whether a path is /proc/PID/fd/N or a like link, and no path below it.
func isOpen(path string) bool {
	rest, ok := strings.CutPrefix(path, "/proc/")
	parts := strings.Split(rest, "/")
	return ok && (len(parts) == 3 && parts[1] == "fd" || len(parts) == 2)
}

// whole calls f with ever larger buffers until the answer has room.
func whole(f func([]byte) (int, error)) ([]byte, error) {
	for size := 0; ; {
		b := make([]byte, size)
		n, err := f(b)
		switch {
		case err == unix.ERANGE || err == nil && size == 0 && n > 0:
			if size, err = f(nil); err != nil {
				return nil, err
			}
		case err != nil:
			return nil, err
		default:
			return b[:n], nil
		}
	}
}

// Size is what they take together with their names, in bytes.
func Size(as []Attribute) (n int64) {
	for _, a := range as {
		n += int64(len(a.Name) + len(a.Value))
	}
	return n
}

// Write gives a file attributes, found by a path as in [Read]. Others than those that Read
// finds are refused: a record may be anybody's.
func Write(path string, as []Attribute) error {
	set := unix.Lsetxattr
	if isOpen(path) {
		set = unix.Setxattr
	}
	for _, a := range as {
		if !kept(a.Name) {
			return fault.New(fault.Invalid, "it has a file with the attribute %q, which no sandbox can give it", a.Name)
		}
		if err := set(path, a.Name, a.Value, 0); err != nil {
			return err
		}
	}
	return nil
}

// The entries of an access control list behind its head (struct posix_acl_xattr_entry of
// linux/posix_acl_xattr.h), and those that name a user or a group.
const (
	aclHead  = 4
	aclEntry = 8
	aclUser  = 0x02
	aclGroup = 0x08
)

// Renumber gives the users and groups that access control lists name other numbers. It
// returns a copy.
func Renumber(as []Attribute, user, group func(uint32) uint32) []Attribute {
	if len(as) == 0 {
		return nil
	}
	out := make([]Attribute, len(as))
	for i, a := range as {
		out[i] = Attribute{a.Name, bytes.Clone(a.Value)}
		if !strings.HasPrefix(a.Name, aclPrefix) {
			continue
		}
		for at := aclHead; at+aclEntry <= len(a.Value); at += aclEntry {
			id := out[i].Value[at+4 : at+aclEntry]
			switch binary.LittleEndian.Uint16(a.Value[at:]) {
			case aclUser:
				binary.LittleEndian.PutUint32(id, user(binary.LittleEndian.Uint32(id)))
			case aclGroup:
				binary.LittleEndian.PutUint32(id, group(binary.LittleEndian.Uint32(id)))
			}
		}
	}
	return out
}
