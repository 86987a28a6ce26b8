package rootfs_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/image/erofs"
	"github.com/sandtree/sandtree/internal/linux/mount"
	"github.com/sandtree/sandtree/internal/rootfs"
	"github.com/sandtree/sandtree/internal/rootfs/rootfstest"
)

// layer makes an image of one file, and a directory to mount it at.
func layer(t *testing.T) (image, at string) {
	t.Helper()
	dir := t.TempDir()
	src := filepath.Join(dir, "src")
	if err := os.Mkdir(src, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(src, "f"), []byte("content"), 0o4755); err != nil {
		t.Fatal(err)
	}
	tree, err := erofs.Scan(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	image, at = filepath.Join(dir, "l.erofs"), filepath.Join(dir, "at")
	f, err := os.Create(image)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := erofs.Write(t.Context(), f, &tree.Tree); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(at, 0o755); err != nil {
		t.Fatal(err)
	}
	return image, at
}

func TestMountLayer(t *testing.T) {
	for name, f := range map[string]func(image, target string) error{
		"file": rootfs.MountLayer,
		"loop": rootfs.MountLayerByLoop,
	} {
		t.Run(name, func(t *testing.T) {
			before := rootfstest.Before(t)
			defer before.Check(t)
			image, at := layer(t)
			if err := f(image, at); err != nil {
				t.Fatal(err)
			}
			if b, err := os.ReadFile(filepath.Join(at, "f")); err != nil || string(b) != "content" {
				t.Errorf("read %q, %v", b, err)
			}
			if err := os.WriteFile(filepath.Join(at, "f"), nil, 0o644); err == nil {
				t.Error("a layer was written to")
			}
			var st unix.Statfs_t
			if err := unix.Statfs(at, &st); err != nil || st.Flags&unix.ST_NOSUID == 0 || st.Flags&unix.ST_NODEV == 0 {
				t.Errorf("mounted with flags %#x, %v", st.Flags, err)
			}
			if err := rootfs.UnmountLayer(at); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestMountLayerRefuses(t *testing.T) {
	before := rootfstest.Before(t)
	defer before.Check(t)
	image, at := layer(t)
	write := func(name string, b []byte) string {
		p := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(p, b, 0o644); err != nil {
			t.Fatal(err)
		}
		return p
	}
	for _, c := range []struct {
		what, image, at string
		want            fault.Kind
	}{
		{"no image", filepath.Join(t.TempDir(), "none"), at, fault.NotFound},
		{"no mount point", image, filepath.Join(t.TempDir(), "none"), fault.NotFound},
		{"zeros", write("zeros", make([]byte, 8192)), at, fault.Internal},
		{"empty", write("empty", nil), at, fault.Internal},
		{"text", write("text", bytes.Repeat([]byte("text"), 4096)), at, fault.Internal},
		{"a directory", t.TempDir(), at, fault.Internal},
	} {
		err := rootfs.MountLayer(c.image, c.at)
		if err == nil {
			t.Errorf("%s: mounted", c.what)
			_ = mount.Detach(c.at)
			continue
		}
		if !fault.Is(err, c.want) {
			t.Errorf("%s: %v (%s), want kind %s", c.what, err, fault.KindOf(err), c.want)
		}
	}
}
