package erofs

import (
	"io"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// Tree is a file tree: its root is a directory.
type Tree struct {
	Root *Node
}

// Node is one file of any kind. The same node under two names is a hard link;
// directories have one name each.
type Node struct {
	// Mode is st_mode of inode(7): the kind and the twelve permission bits.
	Mode uint32
	// UID and GID are the owner's numbers.
	UID, GID uint32
	// Sec and Nsec are the mtime, since the epoch.
	Sec  int64
	Nsec uint32
	// Major and Minor are the device of a character or block device.
	Major, Minor uint32
	// Size is the length of a regular file in bytes.
	Size int64
	// Target is what a symbolic link holds.
	Target string
	// Xattrs maps full names (user.x, security.capability) to values.
	Xattrs map[string]string
	// Open opens a regular file's content, which yields Size bytes. It may be
	// nil if Size is 0.
	Open func() (io.ReadCloser, error)

	children map[string]*Node
}

// OpaqueXattr marks a directory that hides the directory of lower layers
// (overlayfs.rst, "whiteouts and opaque directories").
const OpaqueXattr = "trusted.overlay.opaque"

// NewTree returns a tree of an empty root owned by 0:0 with mode 0755 and an
// mtime of the epoch.
func NewTree() *Tree { return &Tree{Root: NewDir(0o755)} }

// NewDir returns an empty directory with the given permission bits.
func NewDir(perm uint32) *Node {
	return &Node{Mode: unix.S_IFDIR | perm&0o7777, children: map[string]*Node{}}
}

// Kind returns the S_IFMT part of the mode.
func (n *Node) Kind() uint32 { return n.Mode & unix.S_IFMT }

// IsDir reports whether n is a directory.
func (n *Node) IsDir() bool { return n.Kind() == unix.S_IFDIR }

// IsWhiteout reports whether n is what overlayfs takes for a deleted name: a
// character device 0/0.
func (n *Node) IsWhiteout() bool {
	return n.Kind() == unix.S_IFCHR && n.Major == 0 && n.Minor == 0
}

// IsOpaque reports whether n is a directory marked with [OpaqueXattr].
func (n *Node) IsOpaque() bool { return n.IsDir() && n.Xattrs[OpaqueXattr] == "y" }

// Child returns the entry of that name, or nil.
func (n *Node) Child(name string) *Node { return n.children[name] }

// Names returns the names of the entries, sorted by bytes.
func (n *Node) Names() []string { return slices.Sorted(maps.Keys(n.children)) }

// Add sets an entry, in place of one that has the name already. The name must
// be one that a directory can hold, see [CheckName].
func (n *Node) Add(name string, c *Node) {
	if n.children == nil {
		n.children = map[string]*Node{}
	}
	n.children[name] = c
}

// Remove drops an entry if it is there.
func (n *Node) Remove(name string) { delete(n.children, name) }

// Lookup returns the node of a slash-separated path below the root, or nil.
// It follows no symbolic link.
func (t *Tree) Lookup(path string) *Node {
	n := t.Root
	for part := range strings.SplitSeq(path, "/") {
		if part == "" {
			continue
		}
		if n = n.Child(part); n == nil {
			return nil
		}
	}
	return n
}

// CheckName returns an error of kind Invalid for a name that no directory
// entry can have: empty, a dot or two, with a slash or a NUL, or longer than
// 255 bytes.
func CheckName(name string) error {
	switch {
	case name == "", name == ".", name == "..", strings.ContainsAny(name, "/\x00"):
		return fault.New(fault.Invalid, "file name %q: not a name a directory can hold", name)
	case len(name) > maxNameLen:
		return fault.New(fault.Invalid, "file name %.40q…: %d bytes long, %d are allowed", name, len(name), maxNameLen)
	}
	return nil
}

// SetAttributes gives n the mode, owner, mtime and xattrs of another node.
func (n *Node) SetAttributes(from *Node) {
	n.Mode, n.UID, n.GID, n.Sec, n.Nsec = from.Mode, from.UID, from.GID, from.Sec, from.Nsec
	n.Xattrs = maps.Clone(from.Xattrs)
}

// SetOpaque marks a directory with [OpaqueXattr].
func (n *Node) SetOpaque() {
	if n.Xattrs == nil {
		n.Xattrs = map[string]string{}
	}
	n.Xattrs[OpaqueXattr] = "y"
}
