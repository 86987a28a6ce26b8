package rootfstest

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/rootfs"
)

// shapes lists everything in a root.
func (e *env) shapes(r Root) map[string]shape {
	e.t.Helper()
	m := map[string]shape{}
	r.Do(func() error { return walk(r, func(p string, s shape) { m[p] = s }) })
	return m
}

// difference is what Diff must say, found the slow way.
func difference(a, b map[string]shape) (cs []rootfs.Change) {
	for p, s := range a {
		if t, ok := b[p]; !ok {
			cs = append(cs, rootfs.Change{Path: p, Kind: rootfs.Deleted})
		} else if s != t {
			cs = append(cs, rootfs.Change{Path: p, Kind: rootfs.Modified})
		}
	}
	for p := range b {
		if _, ok := a[p]; !ok {
			cs = append(cs, rootfs.Change{Path: p, Kind: rootfs.Added})
		}
	}
	slices.SortFunc(cs, func(x, y rootfs.Change) int { return strings.Compare(x.Path, y.Path) })
	return cs
}

func (e *env) wantDiff(a, b string, want []rootfs.Change) {
	e.t.Helper()
	got, err := e.s.Diff(e.t.Context(), a, b)
	e.must(err)
	if !slices.Equal(got, want) {
		e.t.Errorf("from %s to %s:\n got %v\nwant %v", a, b, got, want)
	}
}

func diff(e *env) {
	r := e.upper("sb.0")
	e.must(e.s.Snapshot("sb.0", "cp-0"))
	r.Do(func() error {
		return errors.Join(
			os.WriteFile(r.Path("/etc/motd"), []byte("TOP"), 0o644), // as long as before
			os.Remove(r.Path("/etc/passwd")),
			os.Chmod(r.Path("/owned"), 0o600),
			os.Rename(r.Path("/data/deep/er"), r.Path("/data/er")),
			os.WriteFile(r.Path("/new"), nil, 0o644),
			unix.Setxattr(r.Path("/hard1"), "user.mark", []byte("x"), 0),
			os.Remove(r.Path("/link")),
			os.Symlink("elsewhere", r.Path("/link")),
			os.Remove(r.Path("/bin/tool")),
			os.Mkdir(r.Path("/bin/tool"), 0o755),
			os.WriteFile(r.Path("/bin/tool/x"), nil, 0o644),
		)
	})
	e.must(e.s.Snapshot("sb.0", "cp-1"))
	want := []rootfs.Change{
		{Path: "/bin/tool", Kind: "M"}, {Path: "/bin/tool/x", Kind: "A"},
		{Path: "/data/deep/er", Kind: "D"}, {Path: "/data/deep/er/leaf", Kind: "D"},
		{Path: "/data/deep/er/sub", Kind: "D"}, {Path: "/data/deep/er/sub/twig", Kind: "D"},
		{Path: "/data/er", Kind: "A"}, {Path: "/data/er/leaf", Kind: "A"},
		{Path: "/data/er/sub", Kind: "A"}, {Path: "/data/er/sub/twig", Kind: "A"},
		{Path: "/etc/motd", Kind: "M"}, {Path: "/etc/passwd", Kind: "D"},
		{Path: "/hard1", Kind: "M"}, {Path: "/link", Kind: "M"}, {Path: "/new", Kind: "A"}, {Path: "/owned", Kind: "M"},
	}
	e.wantDiff("cp-0", "cp-1", want)
	e.wantDiff("cp-0", "sb.0", want)
	e.wantDiff("cp-1", "sb.0", nil)
	e.wantDiff("cp-1", "cp-1", nil)
	e.write(r, "/new", "now")
	e.wantDiff("cp-1", "sb.0", []rootfs.Change{{Path: "/new", Kind: "M"}})
	e.wantDiff("sb.0", "cp-1", []rootfs.Change{{Path: "/new", Kind: "M"}})
	if got, err := e.s.List(); err != nil || len(got) != 3 {
		e.t.Errorf("a comparison left something: %v %v", got, err)
	}
}

// diffDeep compares a tree that is deeper than any path is long.
func diffDeep(e *env) {
	const depth = 400
	name := strings.Repeat("n", 200)
	r := e.upper("sb.0")
	e.must(e.s.Snapshot("sb.0", "cp-0"))
	each := func(f func(dir int) error) {
		e.t.Helper()
		var err error
		r.Do(func() error {
			var dir int
			dir, err = unix.Open(r.Path("/data"), unix.O_PATH|unix.O_CLOEXEC, 0)
			for range depth {
				if err == nil {
					err = f(dir)
				}
				if err == nil {
					var next int
					next, err = unix.Openat(dir, name, unix.O_PATH|unix.O_CLOEXEC, 0)
					_ = unix.Close(dir)
					dir = next
				}
			}
			return errors.Join(err, unix.Close(dir))
		})
		e.must(err)
	}
	touch := func(dir int, flags int) error {
		fd, err := unix.Openat(dir, "f", unix.O_WRONLY|unix.O_CLOEXEC|flags, 0o644)
		if err == nil {
			_, err = unix.Write(fd, []byte("more"))
			err = errors.Join(err, unix.Close(fd))
		}
		return err
	}
	each(func(dir int) error { return errors.Join(unix.Mkdirat(dir, name, 0o755), touch(dir, unix.O_CREAT)) })
	e.must(e.s.Snapshot("sb.0", "cp-1"))
	each(func(dir int) error { return touch(dir, unix.O_APPEND) })
	got, err := e.s.Diff(e.t.Context(), "cp-1", "sb.0")
	e.must(err)
	if len(got) != depth {
		e.t.Fatalf("%d changes", len(got))
	}
	slices.SortFunc(got, func(a, b rootfs.Change) int { return len(a.Path) - len(b.Path) })
	at := "/data"
	for i := range got {
		if want := (rootfs.Change{Path: at + "/f", Kind: rootfs.Modified}); got[i] != want {
			e.t.Fatalf("change %d is %s of a path of %d bytes, not of %d", i, got[i].Kind, len(got[i].Path), len(want.Path))
		}
		at += "/" + name
	}
	// Their paths have more bytes than a message.
	got, err = e.s.Diff(e.t.Context(), "cp-0", "sb.0")
	if !fault.Is(err, fault.Exhausted) || got != nil {
		e.t.Errorf("%d changes, %v", len(got), err)
	}
}

// diffRandom changes a root at random, and compares what Diff and Resolve say
// with what the roots show.
func diffRandom(e *env) {
	seed := rand.Uint64()
	e.t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	e.must(e.s.CreateUpper("sb.0", 0))
	live := e.mount("sb.0")
	at := "sb.0"
	var ids []string
	seen := map[string]map[string]shape{}
	for i := range 12 {
		for range 15 {
			live.Do(func() error { return randomChange(rnd, live, e.paths(live)) })
		}
		id := fmt.Sprintf("cp-%d", i)
		e.must(e.s.Snapshot(at, id))
		ids = append(ids, id)
		seen[id] = e.shapes(e.clone(id, "look-"+id))
		e.checkResolve(id, seen[id])
		if i%4 == 3 { // go on from an earlier one
			at = fmt.Sprintf("sb.%d", i)
			live = e.clone(ids[rnd.IntN(len(ids))], at)
		}
	}
	for range 25 {
		a, b := ids[rnd.IntN(len(ids))], ids[rnd.IntN(len(ids))]
		e.wantDiff(a, b, difference(seen[a], seen[b]))
	}
}

func (e *env) paths(r Root) []string {
	var ps []string
	if err := walk(r, func(p string, _ shape) { ps = append(ps, p) }); err != nil {
		e.t.Error(err)
	}
	return ps
}

// randomChange does one thing to a root; what the kernel refuses because of
// the names that were drawn is no error.
func randomChange(rnd *rand.Rand, r Root, paths []string) error {
	p := paths[rnd.IntN(len(paths))]
	q := paths[rnd.IntN(len(paths))]
	name := path.Join(path.Dir(q), fmt.Sprintf("n%d", rnd.IntN(20)))
	var err error
	switch rnd.IntN(10) {
	case 0:
		err = os.WriteFile(r.Path(name), []byte(fmt.Sprint(rnd.Uint64())), 0o644)
	case 1:
		var f *os.File
		if f, err = os.OpenFile(r.Path(p), os.O_WRONLY|unix.O_NOFOLLOW, 0); err == nil {
			_, err = f.WriteAt([]byte{byte(rnd.IntN(4))}, int64(rnd.IntN(3)))
			err = errors.Join(err, f.Close())
		}
	case 2:
		err = os.RemoveAll(r.Path(p))
	case 3:
		err = os.Mkdir(r.Path(name), 0o755)
	case 4, 5:
		err = os.Rename(r.Path(p), r.Path(name))
	case 6:
		err = os.Rename(r.Path(p), r.Path(q))
	case 7:
		err = unix.Fchmodat(unix.AT_FDCWD, r.Path(p), []uint32{0o700, 0o755, 0o644}[rnd.IntN(3)], unix.AT_SYMLINK_NOFOLLOW)
	case 8:
		err = os.Link(r.Path(p), r.Path(name))
	case 9:
		err = os.Symlink("to/"+name, r.Path(name))
	}
	for _, harmless := range []error{unix.ENOENT, unix.EEXIST, unix.ENOTDIR, unix.EISDIR, unix.ENOTEMPTY, unix.EINVAL, unix.EPERM, unix.ELOOP, unix.EOPNOTSUPP} {
		if errors.Is(err, harmless) {
			return nil
		}
	}
	return err
}

// checkResolve compares what Resolve opens with what a root shows.
func (e *env) checkResolve(snapshot string, shown map[string]shape) {
	e.t.Helper()
	for _, p := range slices.Sorted(maps.Keys(shown)) {
		if strings.HasPrefix(string(shown[p]), "120") { // a symbolic link is not opened
			continue
		}
		_, f, err := e.s.Resolve(snapshot, p)
		if err != nil {
			e.t.Error(err)
			continue
		}
		s, err := shapeOf(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), true)
		f.Close()
		e.must(err)
		if s != shown[p] {
			e.t.Errorf("%s in %s: resolved to %s, shown is %s", p, snapshot, s, shown[p])
		}
	}
}

func resolve(e *env) {
	r := e.upper("sb.0")
	r.Do(func() error {
		return errors.Join(
			os.WriteFile(r.Path("/etc/passwd"), []byte("copied up"), 0o644),
			os.Rename(r.Path("/data/deep"), r.Path("/data/renamed")),
			os.Rename(r.Path("/usr/share/doc"), r.Path("/doc")),
			os.Remove(r.Path("/hard1")),
			os.RemoveAll(r.Path("/bin")),
			os.Mkdir(r.Path("/bin"), 0o755),
		)
	})
	e.must(e.s.Snapshot("sb.0", "cp-1"))
	for _, c := range []struct {
		snapshot, path string
		want           rootfs.Location
		content        string
	}{
		{"", "/etc/passwd", rootfs.Location{Layer: 1, Path: "etc/passwd"}, "root:x:0:0\n"},
		{"", "/etc/motd", rootfs.Location{Layer: 0, Path: "etc/motd"}, "top"},
		{"", "/data/deep/er/leaf", rootfs.Location{Layer: 1, Path: "data/deep/er/leaf"}, "leaf"},
		{"cp-1", "/etc/passwd", rootfs.Location{Layer: rootfs.Upper, Path: "etc/passwd"}, "copied up"},
		{"cp-1", "/etc/motd", rootfs.Location{Layer: 0, Path: "etc/motd"}, "top"},
		{"cp-1", "/data/renamed/er/leaf", rootfs.Location{Layer: 1, Path: "data/deep/er/leaf"}, "leaf"},
		{"cp-1", "/doc/a", rootfs.Location{Layer: 1, Path: "usr/share/doc/a"}, "doc a"},
		{"cp-1", "/doc/c", rootfs.Location{Layer: 0, Path: "usr/share/doc/c"}, "doc c"},
		{"cp-1", "/opaque/new", rootfs.Location{Layer: 0, Path: "opaque/new"}, "new"},
	} {
		l, f, err := e.s.Resolve(c.snapshot, c.path)
		if err != nil {
			e.t.Error(err)
			continue
		}
		if l != c.want {
			e.t.Errorf("%s in %q lies at %+v, want %+v", c.path, c.snapshot, l, c.want)
		}
		e.want(c.path, read(f), c.content)
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Uid != Base {
			e.t.Errorf("%s: owner %#x, %v", c.path, st.Uid, err)
		}
		f.Close()
	}
	for _, c := range []struct{ snapshot, path string }{
		{"", "/hidden"}, {"", "/opaque/old"}, {"", "/opaque/dir/old"}, {"", "/etc/none"}, {"", "/etc/passwd/x"},
		{"cp-1", "/hard1"}, {"cp-1", "/data/deep/er/leaf"}, {"cp-1", "/usr/share/doc/a"}, {"cp-1", "/bin/tool"},
	} {
		_, f, err := e.s.Resolve(c.snapshot, c.path)
		if err == nil {
			f.Close()
		}
		if !fault.Is(err, fault.NotFound) {
			e.t.Errorf("%s in %q: %v, want not found", c.path, c.snapshot, err)
		}
	}
}

// mountsOfFiles opens files of layers and of a snapshot outside any root.
func mountsOfFiles(e *env) {
	r := e.upper("sb.0")
	e.write(r, "/etc/new", "in the snapshot")
	e.must(e.s.Snapshot("sb.0", "cp-1"))
	if n := e.s.Layers(); n != len(e.layers) {
		e.t.Errorf("%d layers, want %d", n, len(e.layers))
	}
	for i, want := range []string{"top", "base"} {
		fd, err := e.s.LayerFD(i)
		e.must(err)
		l := NewRoot(e.t, fd)
		e.wantFile(l, "/etc/motd", want)
		l.Close()
	}
	fd, err := e.s.SnapshotFD("cp-1")
	e.must(err)
	s := NewRoot(e.t, fd)
	defer s.Close()
	e.wantFile(s, "/etc/new", "in the snapshot")
	var st unix.Stat_t
	e.must(unix.Stat(s.Path("/etc/new"), &st))
	if st.Uid != Base {
		e.t.Errorf("owner %#x, want that of root inside", st.Uid)
	}
	e.must(Do(func() error {
		if err := os.WriteFile(s.Path("/etc/new"), nil, 0o644); !errors.Is(err, unix.EROFS) {
			return fmt.Errorf("write to a snapshot: %w", err)
		}
		return nil
	}))
}
