package layer_test

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/image/erofs"
	"github.com/sandtree/sandtree/internal/image/erofstest"
	"github.com/sandtree/sandtree/internal/image/layer"
)

// TestPack: a tree that went through a tar is as it was.
func TestPack(t *testing.T) {
	content := func(s string) func() (io.ReadCloser, error) {
		return func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(s)), nil }
	}
	tree := erofs.NewTree()
	tree.Root.Mode, tree.Root.UID = unix.S_IFDIR|0o1711, 5
	sub := erofs.NewDir(0o700)
	tree.Root.Add("sub", sub)
	f := &erofs.Node{Mode: unix.S_IFREG | 0o6755, UID: 3_000_000_000, GID: 4, Sec: 1_700_000_000, Nsec: 123456789, Size: 5, Open: content("hello"),
		Xattrs: map[string]string{"user.a": "b\x00c", "security.capability": "\x01\x00\x00\x02\x00\x20" + strings.Repeat("\x00", 14), "trusted.t": ""}}
	tree.Root.Add("f", f)
	sub.Add("hard", f)
	sub.Add(strings.Repeat("n", 255), &erofs.Node{Mode: unix.S_IFREG | 0o600})
	sub.Add("link", &erofs.Node{Mode: unix.S_IFLNK | 0o777, Target: "../" + strings.Repeat("t", 500)})
	sub.Add("null", &erofs.Node{Mode: unix.S_IFCHR | 0o666, Major: 1, Minor: 3})
	sub.Add("disk", &erofs.Node{Mode: unix.S_IFBLK | 0o660, Major: 259, Minor: 70000})
	sub.Add("fifo", &erofs.Node{Mode: unix.S_IFIFO | 0o600, Sec: -5})
	sub.Add("bytes\xff\n", &erofs.Node{Mode: unix.S_IFREG | 0o600})
	var out bytes.Buffer
	if err := layer.Pack(t.Context(), &out, tree); err != nil {
		t.Fatal(err)
	}
	s := newStack(t)
	if _, err := s.Apply(t.Context(), bytes.NewReader(out.Bytes())); err != nil {
		t.Fatal(err)
	}
	read := func(tree *erofs.Tree) map[string]erofstest.File {
		return erofstest.Read(t, erofstest.Mount(t, write(t, tree)), nil)
	}
	erofstest.Diff(t, read(s.View()), read(tree))

	f.Size = 6
	if err := layer.Pack(t.Context(), io.Discard, tree); !fault.Is(err, fault.Conflict) {
		t.Errorf("short content: %v", err)
	}
}
