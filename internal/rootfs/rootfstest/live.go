package rootfstest

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// open opens a file in a root until the end of the test.
func (e *env) openFile(r Root, path string, flags int) *os.File {
	e.t.Helper()
	var f *os.File
	r.Do(func() (err error) { f, err = os.OpenFile(r.Path(path), flags, 0o644); return err })
	e.t.Cleanup(func() { f.Close() })
	return f
}

func read(f *os.File) string {
	b, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<30))
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func (e *env) want(what, got, want string) {
	e.t.Helper()
	if got != want {
		e.t.Errorf("%s: %.60q, want %.60q", what, got, want)
	}
}

// openFiles holds descriptors of every sort across snapshots.
func openFiles(e *env) {
	r := e.upper("sb.0")
	e.write(r, "/log", "")
	lower := e.openFile(r, "/etc/passwd", os.O_RDONLY)
	written := e.openFile(r, "/etc/motd", os.O_RDWR)
	log := e.openFile(r, "/log", os.O_WRONLY|os.O_APPEND)
	dir := e.openFile(r, "/usr/share/doc", os.O_RDONLY)
	var before unix.Stat_t
	e.must(unix.Fstat(int(written.Fd()), &before))
	var want strings.Builder
	for i := range 10 {
		line := fmt.Sprintf("line %d\n", i)
		want.WriteString(line)
		r.Do(func() error {
			_, err := log.WriteString(line)
			if err == nil {
				_, err = written.WriteAt([]byte{'0' + byte(i)}, 0)
			}
			return err
		})
		e.must(e.s.Snapshot("sb.0", fmt.Sprintf("cp-%d", i)))
		e.want("the file's content through its descriptor", read(written), string(rune('0'+i))+"op")
		e.wantFile(r, "/log", want.String())
	}
	var after, path unix.Stat_t
	e.must(unix.Fstat(int(written.Fd()), &after))
	e.must(unix.Stat(r.Path("/etc/motd"), &path))
	if before.Ino != after.Ino || before.Dev != after.Dev || path.Ino != after.Ino || path.Dev != after.Dev {
		e.t.Error("a snapshot changed the identity of an open file")
	}
	e.want("a file of a layer", read(lower), "root:x:0:0\n")
	if names, err := dir.Readdirnames(-1); err != nil || len(names) != 3 {
		e.t.Errorf("directory: %v %v", names, err)
	}
	for i, c := range []Root{e.clone("cp-3", "sb.3"), e.clone("cp-7", "sb.7")} {
		n := []int{3, 7}[i]
		e.wantFile(c, "/etc/motd", string(rune('0'+n))+"op")
		e.wantFile(c, "/log", strings.Join(strings.SplitAfter(want.String(), "\n")[:n+1], ""))
		// An inode number survives the rollback (the device's does not).
		var st unix.Stat_t
		e.must(unix.Stat(c.Path("/etc/motd"), &st))
		if st.Ino != after.Ino {
			e.t.Errorf("inode %d became %d in a clone", after.Ino, st.Ino)
		}
	}
}

func mappings(e *env) {
	r := e.upper("sb.0")
	e.write(r, "/shm", strings.Repeat("a", 8192))
	shared := e.openFile(r, "/shm", os.O_RDWR)
	library := e.openFile(r, "/lib/big.so", os.O_RDONLY)
	size := 64<<10 + 3
	s, err := unix.Mmap(int(shared.Fd()), 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	e.must(err)
	defer func() { e.must(unix.Munmap(s)) }()
	p, err := unix.Mmap(int(library.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	e.must(err)
	defer func() { e.must(unix.Munmap(p)) }()
	p[0] = 'P'
	for i := range 5 {
		s[0], s[4096] = '0'+byte(i), '0'+byte(i)
		e.must(e.s.Snapshot("sb.0", fmt.Sprintf("cp-%d", i)))
		s[1] = 'z' // after the snapshot, so not in it
		e.want("a shared mapping through the file", read(shared)[:2], string(rune('0'+i))+"z")
		s[1] = 'a'
	}
	if p[0] != 'P' || string(p[size-3:]) != "end" {
		e.t.Error("a private mapping changed")
	}
	for i := range 5 {
		want := bytes.Repeat([]byte("a"), 8192)
		want[0], want[4096] = '0'+byte(i), '0'+byte(i)
		e.wantFile(e.clone(fmt.Sprintf("cp-%d", i), fmt.Sprintf("sb.%d", i+1)), "/shm", string(want))
	}
	// The file is copied up while it is mapped: the mapping stays as it was.
	r.Do(func() error { return os.WriteFile(r.Path("/lib/big.so"), []byte("replaced"), 0o644) })
	e.must(e.s.Snapshot("sb.0", "cp-up"))
	if string(p[size-3:]) != "end" {
		e.t.Error("a mapping of a file of a layer changed at copy-up")
	}
	e.wantFile(e.clone("cp-up", "sb.up"), "/lib/big.so", "replaced")
}

func unlinked(e *env) {
	r := e.upper("sb.0")
	e.write(r, "/own", "of the upper")
	lower := e.openFile(r, "/etc/passwd", os.O_RDONLY)
	own := e.openFile(r, "/own", os.O_RDWR)
	r.Do(func() error {
		return errors.Join(unix.Unlink(r.Path("/etc/passwd")), unix.Unlink(r.Path("/own")))
	})
	for i := range 3 {
		e.must(e.s.Snapshot("sb.0", fmt.Sprintf("cp-%d", i)))
		e.want("an unlinked file of a layer", read(lower), "root:x:0:0\n")
		r.Do(func() error { _, err := own.WriteAt([]byte{'0' + byte(i)}, 0); return err })
		e.want("an unlinked file of the upper", read(own), string(rune('0'+i))+"f the upper")
	}
	c := e.clone("cp-1", "sb.1")
	e.wantAbsent(c, "/etc/passwd")
	e.wantAbsent(c, "/own")
	e.write(c, "/etc/passwd", "made anew")
	e.wantFile(c, "/etc/passwd", "made anew")
	e.wantAbsent(r, "/etc/passwd")
}

func hardLinks(e *env) {
	r := e.upper("sb.0")
	e.write(r, "/a", "one")
	r.Do(func() error { return os.Link(r.Path("/a"), r.Path("/b")) })
	e.must(e.s.Snapshot("sb.0", "cp-1"))
	e.write(r, "/b", "two")
	e.wantFile(r, "/a", "two")
	c := e.clone("cp-1", "sb.1")
	e.wantFile(c, "/b", "one")
	e.write(c, "/a", "three")
	e.wantFile(c, "/b", "three")
	e.wantFile(r, "/a", "two")
	// Links in a layer show both names; copy-up parts them (index=off).
	e.wantFile(c, "/hard1", "linked")
	e.write(c, "/hard1", "apart")
	e.wantFile(c, "/hard2", "linked")
}

func renames(e *env) {
	r := e.upper("sb.0")
	r.Do(func() error {
		return errors.Join(
			os.Rename(r.Path("/data/deep"), r.Path("/data/moved")), // in place: a relative redirect
			os.Rename(r.Path("/usr/share/doc"), r.Path("/doc")),    // across: an absolute one
			os.Rename(r.Path("/data/moved/er"), r.Path("/er")),     // out of a renamed one
			os.Rename(r.Path("/etc/motd"), r.Path("/motd")),
		)
	})
	check := func(r Root) {
		e.t.Helper()
		e.wantFile(r, "/er/leaf", "leaf")
		e.wantFile(r, "/er/sub/twig", "twig")
		e.wantFile(r, "/doc/a", "doc a")
		e.wantFile(r, "/doc/c", "doc c")
		e.wantFile(r, "/motd", "top")
		for _, p := range []string{"/data/deep", "/data/moved/er", "/usr/share/doc", "/etc/motd"} {
			e.wantAbsent(r, p)
		}
	}
	check(r)
	e.must(e.s.Snapshot("sb.0", "cp-1"))
	c := e.clone("cp-1", "sb.1")
	check(c)
	r.Do(func() error { return os.Rename(r.Path("/er"), r.Path("/data/deep")) })
	e.wantFile(r, "/data/deep/leaf", "leaf")
	check(c)
	c.Do(func() error { return os.Rename(c.Path("/doc"), c.Path("/er/doc")) })
	e.must(e.s.Snapshot("sb.1", "cp-2"))
	e.wantFile(e.clone("cp-2", "sb.2"), "/er/doc/b", "doc b")
	e.wantFile(r, "/doc/b", "doc b")
}

func whiteouts(e *env) {
	r := e.upper("sb.0")
	r.Do(func() error {
		return errors.Join(
			os.RemoveAll(r.Path("/usr")),
			os.Mkdir(r.Path("/usr"), 0o755), // opaque now
			os.Remove(r.Path("/etc/motd")),
			os.WriteFile(r.Path("/hidden"), []byte("shown again"), 0o644),
		)
	})
	e.must(e.s.Snapshot("sb.0", "cp-1"))
	r.Do(func() error { return os.MkdirAll(r.Path("/usr/share/doc"), 0o755) })
	c := e.clone("cp-1", "sb.1")
	e.wantAbsent(c, "/usr/share")
	e.wantAbsent(c, "/etc/motd")
	e.wantFile(c, "/hidden", "shown again")
	e.wantFile(c, "/etc/passwd", "root:x:0:0\n")
	e.wantAbsent(r, "/usr/share/doc/a")
}

// journal commits like a database does: journal, fsync, data, fsync, unlink.
func journal(e *env) {
	r := e.upper("sb.0")
	e.write(r, "/db", "balance 0")
	for i := 1; i <= 20; i++ {
		r.Do(func() error {
			if err := fsynced(r.Path("/db-journal"), fmt.Sprintf("balance %d", i-1), os.O_CREATE|os.O_EXCL); err != nil {
				return err
			}
			return fsynced(r.Path("/db"), fmt.Sprintf("balance %d", i), os.O_TRUNC)
		})
		e.must(e.s.Snapshot("sb.0", fmt.Sprintf("mid-%d", i)))
		r.Do(func() error { return os.Remove(r.Path("/db-journal")) })
		e.must(e.s.Snapshot("sb.0", fmt.Sprintf("end-%d", i)))
	}
	mid, end := e.clone("mid-7", "sb.1"), e.clone("end-7", "sb.2")
	e.wantFile(mid, "/db-journal", "balance 6")
	e.wantFile(mid, "/db", "balance 7")
	e.wantAbsent(end, "/db-journal")
	e.wantFile(end, "/db", "balance 7")
}

func fsynced(path, content string, flags int) error {
	f, err := os.OpenFile(path, os.O_WRONLY|flags, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.WriteString(content); err != nil {
		return err
	}
	return f.Sync()
}

// immutable takes snapshots beside a writer that does not stop, and looks
// twice at each of them.
func immutable(e *env) {
	r := e.upper("sb.0")
	e.write(r, "/counter", strings.Repeat("x", 64<<10))
	f := e.openFile(r, "/counter", os.O_RDWR)
	m, err := unix.Mmap(int(f.Fd()), 0, 64<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	e.must(err)
	var quit atomic.Bool
	done := make(chan error, 1)
	go func() {
		done <- Do(func() error {
			for i := 0; !quit.Load(); i++ {
				copy(m[i*512%(64<<10):], fmt.Sprint(i))
				p := r.Path(fmt.Sprintf("/etc/f%d", i%50))
				if err := os.WriteFile(p, []byte(fmt.Sprint(i)), 0o644); err != nil {
					return err
				}
				if i%3 == 0 {
					if err := os.Rename(p, r.Path(fmt.Sprintf("/etc/g%d", i%7))); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}()
	sum := func(c Root) string {
		h := sha256.New()
		c.Do(func() error { return walk(c, func(p string, s shape) { fmt.Fprintln(h, p, s) }) })
		return string(h.Sum(nil))
	}
	first := map[string]string{}
	for i := range 12 {
		id := fmt.Sprintf("cp-%d", i)
		e.must(e.s.Snapshot("sb.0", id))
		first[id] = sum(e.clone(id, fmt.Sprintf("first-%d", i)))
	}
	quit.Store(true)
	if err := <-done; err != nil {
		e.t.Error(err)
	}
	e.must(unix.Munmap(m))
	for id, want := range first {
		if sum(e.clone(id, "again-"+id)) != want {
			e.t.Errorf("snapshot %s changed", id)
		}
	}
}
