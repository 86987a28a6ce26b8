package erofs_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/image/erofs"
)

func TestFollow(t *testing.T) {
	link := func(target string) *erofs.Node { return &erofs.Node{Mode: unix.S_IFLNK | 0o777, Target: target} }
	tree := erofs.NewTree()
	usr, bin := erofs.NewDir(0o755), erofs.NewDir(0o755)
	sh := file("sh")
	tree.Root.Add("usr", usr)
	usr.Add("bin", bin)
	bin.Add("dash", sh)
	bin.Add("sh", link("dash"))
	tree.Root.Add("bin", link("usr/bin"))
	tree.Root.Add("abs", link("/../bin/./sh"))
	tree.Root.Add("up", link("../../usr/bin/../bin/sh"))
	tree.Root.Add("loop", link("loop"))
	tree.Root.Add("dangling", link("absent/x"))
	for path, want := range map[string]*erofs.Node{
		"usr/bin/dash": sh, "/bin/sh": sh, "abs": sh, "up": sh, "bin": bin, "": tree.Root, "..": tree.Root, "bin/": bin,
		"loop": nil, "dangling": nil, "bin/sh/x": nil, "bin/sh/..": nil, "absent": nil,
	} {
		if got := tree.Follow(path); got != want {
			t.Errorf("Follow(%q) = %v, want %v", path, got, want)
		}
	}
}
