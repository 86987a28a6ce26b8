package host

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/host/layout"
	"github.com/sandtree/sandtree/internal/linux/cgroup"
)

// removeWithin bounds the wait for killed processes to end.
const removeWithin = 30 * time.Second

// removeRemains removes what an earlier daemon on this state directory left
// when it was killed. Its mounts and loop devices went with its last process.
func removeRemains(l layout.Layout) error {
	pools, err := os.ReadDir(l.Pools())
	if err != nil {
		return fault.New(fault.Internal, "clean up: %w", err)
	}
	for _, e := range pools {
		if err := os.Remove(filepath.Join(l.Pools(), e.Name())); err != nil {
			return fault.New(fault.Internal, "clean up: %w", err)
		}
	}
	for _, dir := range []string{filepath.Dir(l.PoolMount("x")), filepath.Dir(l.LayerMount("x")), filepath.Dir(l.AttachPoint("x"))} {
		points, err := os.ReadDir(dir)
		if err != nil {
			return fault.New(fault.Internal, "clean up: %w", err)
		}
		for _, e := range points {
			// Empty, or it stays: what may be mounted there is not ours to delete.
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return fault.New(fault.Conflict, "clean up: %w", err).WithHint("see what is mounted there: findmnt %s", filepath.Join(dir, e.Name()))
			}
		}
	}
	return nil
}

// freshCgroup ends what still runs in the daemon's cgroups and makes them
// anew.
func freshCgroup(ctx context.Context, c cgroup.Layout, name string) (*cgroup.Parent, error) {
	p, err := c.OpenParent(name)
	if err != nil {
		return nil, err
	}
	if err := removeCgroup(ctx, p); err != nil {
		return nil, err
	}
	return c.OpenParent(name)
}

func removeCgroup(ctx context.Context, p *cgroup.Parent) error {
	ctx, cancel := context.WithTimeout(ctx, removeWithin)
	defer cancel()
	return p.Remove(ctx)
}

// removeIfThere removes a file or empty directory.
func removeIfThere(path string) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
