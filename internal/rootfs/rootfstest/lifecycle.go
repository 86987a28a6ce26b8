package rootfstest

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/rootfs"
)

// wantFile checks a file's content.
func (e *env) wantFile(r Root, path, want string) {
	e.t.Helper()
	var b []byte
	r.Do(func() (err error) { b, err = os.ReadFile(r.Path(path)); return err })
	if string(b) != want {
		e.t.Errorf("%s holds %.60q, want %.60q", path, b, want)
	}
}

func (e *env) write(r Root, path, content string) {
	e.t.Helper()
	r.Do(func() error { return os.WriteFile(r.Path(path), []byte(content), 0o644) })
}

func (e *env) wantAbsent(r Root, path string) {
	e.t.Helper()
	r.Do(func() error {
		if _, err := os.Lstat(r.Path(path)); !os.IsNotExist(err) {
			e.t.Errorf("%s: %v, want it not to exist", path, err)
		}
		return nil
	})
}

func lifecycle(e *env) {
	r := e.upper("sb.0")
	e.wantFile(r, "/etc/motd", "top")
	e.wantAbsent(r, "/hidden")
	e.wantAbsent(r, "/opaque/old")
	e.write(r, "/etc/motd", "one")
	e.must(e.s.Presync())
	e.must(e.s.Snapshot("sb.0", "cp-1"))
	e.write(r, "/etc/motd", "two")
	e.must(e.s.Flush("sb.0"))
	e.must(e.s.Snapshot("sb.0", "cp-2"))
	e.write(r, "/etc/motd", "three")
	back := e.clone("cp-1", "sb.1")
	e.wantFile(back, "/etc/motd", "one")
	e.wantFile(e.clone("cp-2", "sb.2"), "/etc/motd", "two")
	e.wantFile(r, "/etc/motd", "three")

	// Neither snapshots nor clones hang on what they came from.
	e.must(e.s.Remove("cp-1"))
	e.write(back, "/etc/motd", "one and a half")
	e.must(e.s.Snapshot("sb.1", "cp-3"))
	e.wantFile(e.clone("cp-3", "sb.3"), "/etc/motd", "one and a half")

	if err := e.s.Flush("sb.9"); !fault.Is(err, fault.NotFound) {
		e.t.Errorf("flush what does not exist: %v", err)
	}
	got, err := e.s.List()
	e.must(err)
	want := []rootfs.Entry{{ID: "cp-2", Snapshot: true}, {ID: "cp-3", Snapshot: true}, {ID: "sb.0"}, {ID: "sb.1"}, {ID: "sb.2"}, {ID: "sb.3"}}
	if !slices.Equal(got, want) {
		e.t.Errorf("list: %v, want %v", got, want)
	}
}

func faults(e *env) {
	e.upper("sb.0")
	e.must(e.s.Snapshot("sb.0", "cp-1"))
	e.must(e.s.CreateUpper("gone", 0))
	e.must(e.s.Remove("gone"))
	mount := func(id string) error {
		fd, err := e.s.MountRoot(id)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}
	resolve := func(snapshot, path string) error {
		_, f, err := e.s.Resolve(snapshot, path)
		if err == nil {
			f.Close()
		}
		return err
	}
	for _, c := range []struct {
		what string
		err  error
		want fault.Kind
	}{
		{"create with an empty id", e.s.CreateUpper("", 0), fault.Invalid},
		{"create with a path", e.s.CreateUpper("a/b", 0), fault.Invalid},
		{"create with dots", e.s.CreateUpper("..", 0), fault.Invalid},
		{"create with a long id", e.s.CreateUpper(strings.Repeat("a", 128), 0), fault.Invalid},
		{"create an upper twice", e.s.CreateUpper("sb.0", 0), fault.Exists},
		{"create over a snapshot", e.s.CreateUpper("cp-1", 0), fault.Exists},
		{"mount nothing", mount("sb.9"), fault.NotFound},
		{"mount what was removed", mount("gone"), fault.NotFound},
		{"mount a snapshot", mount("cp-1"), fault.Conflict},
		{"mount twice", mount("sb.0"), fault.Conflict},
		{"mount outside", mount("../x"), fault.Invalid},
		{"snapshot of nothing", e.s.Snapshot("sb.9", "cp-2"), fault.NotFound},
		{"snapshot of a snapshot", e.s.Snapshot("cp-1", "cp-2"), fault.Conflict},
		{"snapshot over another", e.s.Snapshot("sb.0", "cp-1"), fault.Exists},
		{"snapshot to a bad id", e.s.Snapshot("sb.0", "CP"), fault.Invalid},
		{"clone of nothing", e.s.Clone("cp-9", "sb.2", 0), fault.NotFound},
		{"clone over another", e.s.Clone("cp-1", "sb.0", 0), fault.Exists},
		{"remove nothing", e.s.Remove("cp-9"), fault.NotFound},
		{"remove twice", e.s.Remove("gone"), fault.NotFound},
		{"remove outside", e.s.Remove("../etc"), fault.Invalid},
		{"resolve in nothing", resolve("cp-9", "/etc"), fault.NotFound},
		{"resolve a relative path", resolve("", "etc"), fault.Invalid},
		{"resolve dots", resolve("", "/etc/../etc"), fault.Invalid},
		{"resolve through a link", resolve("", "/link/x"), fault.NotFound},
		{"layer out of range", func() error { _, err := e.s.LayerFD(2); return err }(), fault.Invalid},
		{"files of nothing", func() error { _, err := e.s.SnapshotFD("cp-9"); return err }(), fault.NotFound},
		{"compare with nothing", func() error { _, err := e.s.Diff(e.t.Context(), "cp-1", "cp-9"); return err }(), fault.NotFound},
		{"negative limit", func() error { _, err := e.s.NewQuota(-1); return err }(), fault.Invalid},
	} {
		if !fault.Is(c.err, c.want) {
			e.t.Errorf("%s: %v (%s), want kind %s", c.what, c.err, fault.KindOf(c.err), c.want)
		}
	}
}

func rootAttributes(e *env) {
	r := e.upper("sb.0")
	var root, owned, tool unix.Stat_t
	e.must(unix.Fstat(r.FD, &root))
	e.must(unix.Stat(r.Path("/owned"), &owned))
	e.must(unix.Stat(r.Path("/bin/tool"), &tool))
	if root.Mode&0o7777 != 0o751 || root.Uid != Base {
		e.t.Errorf("the root has mode %o and owner %#x, want those of the topmost layer", root.Mode&0o7777, root.Uid)
	}
	if owned.Uid != Base+1000 || owned.Gid != Base+1000 || owned.Mode&0o7777 != 0o640 {
		e.t.Errorf("/owned belongs to %#x:%#x with mode %o", owned.Uid, owned.Gid, owned.Mode)
	}
	if tool.Mode&unix.S_ISUID == 0 {
		e.t.Error("/bin/tool lost its setuid bit")
	}
	// A change of owner inside arrives on disk as inside, so it survives.
	r.Do(func() error { return os.Chown(r.Path("/etc/motd"), Base+7, Base+8) })
	e.must(e.s.Snapshot("sb.0", "cp-1"))
	var st unix.Stat_t
	e.must(unix.Stat(e.clone("cp-1", "sb.1").Path("/etc/motd"), &st))
	if st.Uid != Base+7 || st.Gid != Base+8 {
		e.t.Errorf("a clone shows owner %#x:%#x", st.Uid, st.Gid)
	}
}

func clonesApart(e *env) {
	r := e.upper("sb.0")
	big := strings.Repeat("0", 1<<20)
	e.write(r, "/big", big)
	e.must(e.s.Snapshot("sb.0", "cp-1"))
	var roots []Root
	for i := range 5 {
		c := e.clone("cp-1", fmt.Sprintf("fork-%d", i))
		roots = append(roots, c)
		c.Do(func() error {
			f, err := os.OpenFile(c.Path("/big"), os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.WriteAt(bytes.Repeat([]byte{'1' + byte(i)}, 4096), int64(i)*8192)
			return err
		})
		e.write(c, "/mine", fmt.Sprint(i))
	}
	for i, c := range roots {
		want := []byte(big)
		copy(want[i*8192:], bytes.Repeat([]byte{'1' + byte(i)}, 4096))
		e.wantFile(c, "/big", string(want))
		e.wantFile(c, "/mine", fmt.Sprint(i))
	}
	e.wantFile(r, "/big", big)
	e.wantAbsent(r, "/mine")
}

// concurrent uses one store from many sides at once.
func concurrent(e *env) {
	r := e.upper("sb.0")
	e.write(r, "/x", "x")
	e.must(e.s.Snapshot("sb.0", "cp"))
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 10 {
				id := fmt.Sprintf("sb-%d-%d", i, j)
				err := func() error {
					if err := e.s.Clone("cp", id, 0); err != nil {
						return err
					}
					fd, err := e.s.MountRoot(id)
					if err != nil {
						return err
					}
					c := Root{FD: fd}
					err = Do(func() error { return os.WriteFile(c.Path("/y"), []byte(id), 0o644) })
					if err == nil {
						err = e.s.Snapshot(id, "s"+id)
					}
					unix.Close(fd)
					if err != nil {
						return err
					}
					if err := e.s.Remove(id); err != nil {
						return err
					}
					return e.s.Remove("s" + id)
				}()
				if err != nil {
					e.t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	got, err := e.s.List()
	e.must(err)
	if len(got) != 2 {
		e.t.Errorf("left in the store: %v", got)
	}
}
