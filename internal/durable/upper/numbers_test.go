package upper_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/durable/cbor"
	"github.com/sandtree/sandtree/internal/durable/chunk"
	"github.com/sandtree/sandtree/internal/durable/upper"
	"github.com/sandtree/sandtree/internal/durable/uppertest"
	"github.com/sandtree/sandtree/internal/linux/btrfs"
)

// subvolume makes one with a directory, as the store does for an upper.
func subvolume(t testing.TB, pool, name string) (dir string) {
	t.Helper()
	r := btrfs.NewRequest(0)
	defer r.Close()
	must(t, r.Create(openDir(t, pool), name))
	dir = filepath.Join(pool, name, "upper")
	must(t, os.Mkdir(dir, 0o755))
	return dir
}

// numbersIn are the inode numbers of all below a directory, by path.
func numbersIn(t testing.TB, dir string) map[string]uint64 {
	t.Helper()
	out := map[string]uint64{}
	must(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		err = unix.Lstat(path, &st)
		rel, _ := filepath.Rel(dir, path)
		out[rel] = st.Ino
		return err
	}))
	return out
}

// Files come back with their inode numbers, wherever they were moved to, and
// with gaps between them where others were deleted.
func TestNumbersComeBack(t *testing.T) {
	pool := btrfsDir(t)
	dir := subvolume(t, pool, "a")
	in := func(s string) string { return filepath.Join(dir, s) }
	must(t, os.Mkdir(in("work"), 0o755)) // as overlayfs has some of its own
	must(t, os.Remove(in("work")))
	everything(t, dir)
	for i := range 50 {
		must(t, os.WriteFile(in(fmt.Sprint("gap", i)), nil, 0o600))
		if i%3 > 0 {
			must(t, os.Remove(in(fmt.Sprint("gap", i))))
		}
	}
	must(t, os.Mkdir(in("young"), 0o755))
	must(t, os.Rename(in("d"), in("young/older")))
	must(t, os.Rename(in("gap0"), in("young/older/sub/oldest")))
	must(t, os.Rename(in("gap3"), in("a")))
	k := newKept()
	m, _ := capture(t, k, nil, dir)
	to := subvolume(t, pool, "b")
	must(t, m.Restore(t.Context(), k, openDir(t, to)))
	uppertest.Same(t, dir, to)
	was, is := numbersIn(t, dir), numbersIn(t, to)
	for path, ino := range was {
		if is[path] != ino {
			t.Errorf("%s was file %d and is %d", path, ino, is[path])
		}
	}

	// One that is behind too large a gap gets another number, and so do those behind it.
	m = numbered(t, k, 300, 301, 300_000)
	to = subvolume(t, pool, "c")
	must(t, m.Restore(t.Context(), k, openDir(t, to)))
	is = numbersIn(t, to)
	if is["0"] != 300 || is["1"] != 301 || is["2"] == 300_000 || len(is) != 4 {
		t.Errorf("files have the numbers %v", is)
	}
}

// numbered is a manifest of empty files with numbers.
func numbered(t testing.TB, k *kept, inos ...uint64) upper.Manifest {
	t.Helper()
	const root = 257
	es := []upper.Entry{{Ino: root, Mode: unix.S_IFDIR | 0o755}}
	for i, ino := range inos {
		es = append(es, upper.Entry{Ino: ino, Dir: root, Name: fmt.Sprint(i), Mode: unix.S_IFIFO | 0o600})
	}
	segment, err := cbor.Marshal(es)
	must(t, err)
	id, err := k.Put(segment)
	must(t, err)
	return upper.Manifest{Segments: []chunk.ID{id}, Entries: int64(len(es))}
}
