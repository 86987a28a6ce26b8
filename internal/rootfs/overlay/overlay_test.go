package overlay_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/sandtree/sandtree/internal/image/erofs"
	"github.com/sandtree/sandtree/internal/rootfs"
	"github.com/sandtree/sandtree/internal/rootfs/overlay"
	"github.com/sandtree/sandtree/internal/rootfs/pool"
	"github.com/sandtree/sandtree/internal/rootfs/rootfstest"
)

func TestStore(t *testing.T) {
	rootfstest.Run(t, rootfstest.Harness{Image: image, Setup: setup})
}

// TestStoreOfOlderKernels runs the suite with layers that have a place in the
// mount namespace.
func TestStoreOfOlderKernels(t *testing.T) {
	overlay.ForceAttach(t)
	rootfstest.Run(t, rootfstest.Harness{Image: image, Setup: setup})
}

func image(ctx context.Context, dir, image string) error {
	tree, err := erofs.Scan(ctx, dir)
	if err != nil {
		return err
	}
	defer tree.Close()
	f, err := os.OpenFile(image, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = erofs.Write(ctx, f, &tree.Tree)
	return errors.Join(err, f.Close())
}

func setup(t *testing.T) func(layers []string) (rootfs.Store, error) {
	t.Helper()
	dir := t.TempDir()
	mnt, attach := filepath.Join(dir, "mnt"), filepath.Join(dir, "attach")
	for _, d := range []string{mnt, attach} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	p, err := pool.Open(t.Context(), pool.Config{
		Path: filepath.Join(dir, "pool.img"), MountPoint: mnt,
		Initial: 512 << 20, Step: 256 << 20, HostReserve: 1,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Destroy(); err != nil {
			t.Error(err)
		}
	})
	userns := rootfstest.UserNS(t)
	return func(layers []string) (rootfs.Store, error) {
		return overlay.Open(overlay.Config{Pool: mnt, Layers: layers, UserNS: userns, Attach: attach})
	}
}
