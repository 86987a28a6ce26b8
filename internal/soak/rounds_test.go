package soak

import (
	"context"
	"flag"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/testdaemon"
)

var rounds = flag.Int("rounds", 12, "rounds of pause and resume, and of hibernate and wake")

// A sandbox that is suspended again and again loses nothing, and takes no more
// of the tree, the disk and the memory than after its first rounds.
func TestSuspensionsStayBounded(t *testing.T) {
	d := testdaemon.Start(t)
	for _, how := range []string{"pause", "hibernate"} {
		t.Run(how, func(t *testing.T) {
			c := d.Dial()
			b, err := newBox(t.Context(), newDisasters(d), c)
			if err != nil {
				t.Fatal(err)
			}
			r := rand.New(rand.NewPCG(1, 2))
			if err := b.checkpoint(t.Context(), false); err != nil {
				t.Fatal(err)
			}
			var disk, kib []int64
			for i := range *rounds {
				if err := b.round(t.Context(), r, how == "hibernate"); err != nil {
					t.Fatalf("round %d: %v", i+1, err)
				}
				if (i+1)%max(*rounds/4, 1) == 0 {
					disk = append(disk, allocated(filepath.Join(d.State, "durable"))>>10)
					kib = append(kib, take(d)["supervisor KiB"])
				}
			}
			t.Logf("on disk %v KiB, supervisor %v KiB, at each quarter", disk, kib)
			tree, err := b.sb.Tree(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if n := len(tree.Checkpoints); n > 2 {
				t.Errorf("the tree has %d checkpoints after %d suspensions, want the one that was asked for and the last", n, *rounds)
			}
			if last := disk[len(disk)-1]; last > 2*disk[0]+64<<10 {
				t.Errorf("the disk grows: %v KiB", disk)
			}
			if last := kib[len(kib)-1]; last > kib[0]*5/4+32<<10 {
				t.Errorf("the supervisor grows: %v KiB", kib)
			}
			if err := b.rollback(t.Context(), r); err != nil {
				t.Error(err)
			}
			if err := b.remove(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// round lets the program do a step, makes it stand still and asks it again,
// which wakes it.
func (b *box) round(ctx context.Context, r *rand.Rand, hibernate bool) error {
	if err := b.write(ctx, r); err != nil {
		return err
	}
	return b.stand(ctx, hibernate)
}

// allocated is how many bytes of the disk the files below a directory take.
func allocated(dir string) (bytes int64) {
	_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil && unix.Lstat(path, &st) == nil {
			bytes += st.Blocks * 512
		}
		return nil
	})
	return bytes
}
