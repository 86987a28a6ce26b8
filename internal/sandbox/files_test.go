package sandbox_test

import (
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/sandbox"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

func read(t testing.TB, i *sandbox.Incarnation, path string) string {
	t.Helper()
	f, err := i.OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func put(t testing.TB, i *sandbox.Incarnation, path, text string, mode uint32, uid, gid int) {
	t.Helper()
	f, err := i.CreateFile(path, mode, uid, gid)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

func TestFilesKeepOwnerModeAndContent(t *testing.T) {
	i := boot(t)
	if err := i.Mkdir("/srv/d", 0o2750, 12, 34); err != nil {
		t.Fatal(err)
	}
	put(t, i, "/srv/d/f", "hello", 0o4751, 1000, 1001)
	if err := i.Symlink("f", "/srv/d/l", 5, 6); err != nil {
		t.Fatal(err)
	}
	out, _ := sh(t, i, "cd /srv/d && stat -c '%n %a %u %g %s %F' . f l && cat l")
	if want := ". 2750 12 34 80 directory\nf 4751 1000 1001 5 regular file\nl 777 5 6 1 symbolic link\nhello"; out != want {
		t.Errorf("inside:\n%s\nwant:\n%s", out, want)
	}
	e, err := i.Stat("/srv/d/l", false)
	if err != nil || e.Size != 5 || e.UID != 1000 || e.GID != 1001 || e.Mode != unix.S_IFREG|0o4751 || time.Since(e.MTime) > time.Minute {
		t.Errorf("stat through the link: %+v, %v", e, err)
	}
	if e, err := i.Readlink("/srv/d/l"); err != nil || e.Target != "f" || e.Name != "l" {
		t.Errorf("readlink: %+v, %v", e, err)
	}
	es, err := i.List("/srv/d")
	if err != nil || len(es) != 2 || es[0].Name != "f" || es[1].Name != "l" || es[1].Target != "f" || es[1].UID != 5 {
		t.Errorf("list: %+v, %v", es, err)
	}
	put(t, i, "/srv/d/l", "new", 0o600, 0, 0) // follows the link, truncates
	if got := read(t, i, "/srv/d/f"); got != "new" {
		t.Errorf("content %q", got)
	}
	if e, _ := i.Stat("/srv/d/f", true); e.Mode&0o7777 != 0o600 || e.UID != 0 {
		t.Errorf("after the second create: %+v", e)
	}
}

func TestRenameReplacesAndRemoveTakesTheLink(t *testing.T) {
	i := boot(t)
	put(t, i, "/srv/new", "new", 0o640, 7, 8)
	put(t, i, "/srv/old", "old", 0o600, 0, 0)
	if err := i.Symlink("old", "/srv/link", 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := i.Rename("/srv/new", "/srv/old"); err != nil {
		t.Fatal(err)
	}
	if err := i.Remove("/srv/link"); err != nil {
		t.Fatal(err)
	}
	if out, _ := sh(t, i, "cd /srv && stat -c '%n %a %u %g' * && cat old"); out != "old 640 7 8\nnew" {
		t.Errorf("inside: %s", out)
	}
}

func TestFileErrorsHaveKinds(t *testing.T) {
	i := boot(t)
	sh(t, i, "mkfifo /fifo; mkdir /d; ln -s /nowhere /dangling; ln -s /loop /loop; cp /bin/sleep /busy; /busy 100 >/dev/null 2>&1 </dev/null &")
	for _, c := range []struct {
		name string
		req  control.FileRequest
		kind fault.Kind
	}{
		{"no file", control.FileRequest{Op: control.FileOpen, Path: "/none"}, fault.NotFound},
		{"below a file", control.FileRequest{Op: control.FileStat, Path: "/etc/passwd/x"}, fault.Invalid},
		{"a loop", control.FileRequest{Op: control.FileStat, Path: "/loop"}, fault.Invalid},
		{"a dangling link", control.FileRequest{Op: control.FileCreate, Path: "/dangling"}, fault.NotFound},
		{"open a directory", control.FileRequest{Op: control.FileOpen, Path: "/d"}, fault.Invalid},
		{"create over a directory", control.FileRequest{Op: control.FileCreate, Path: "/d"}, fault.Invalid},
		{"open a fifo", control.FileRequest{Op: control.FileOpen, Path: "/fifo"}, fault.Invalid},
		{"create over a fifo", control.FileRequest{Op: control.FileCreate, Path: "/fifo"}, fault.Invalid},
		{"open a device", control.FileRequest{Op: control.FileOpen, Path: "/dev/zero"}, fault.Invalid},
		{"open PID 1's memory", control.FileRequest{Op: control.FileOpen, Path: "/proc/self/mem"}, fault.Invalid},
		{"write PID 1's memory", control.FileRequest{Op: control.FileCreate, Path: "/proc/1/mem"}, fault.Invalid},
		{"write a sysctl", control.FileRequest{Op: control.FileCreate, Path: "/proc/sys/kernel/core_pattern"}, fault.Invalid},
		{"create in proc", control.FileRequest{Op: control.FileCreate, Path: "/proc/x"}, fault.NotFound},
		{"list a file", control.FileRequest{Op: control.FileList, Path: "/etc/passwd"}, fault.Invalid},
		{"make what exists", control.FileRequest{Op: control.FileMkdir, Path: "/d"}, fault.Exists},
		{"link over what exists", control.FileRequest{Op: control.FileSymlink, Path: "/d", Target: "x"}, fault.Exists},
		{"make dots", control.FileRequest{Op: control.FileMkdir, Path: "/d/.."}, fault.Invalid},
		{"no parent", control.FileRequest{Op: control.FileMkdir, Path: "/none/d"}, fault.NotFound},
		{"no link", control.FileRequest{Op: control.FileReadlink, Path: "/d"}, fault.Invalid},
		{"rename what is not there", control.FileRequest{Op: control.FileRename, Path: "/none", Target: "/d/x"}, fault.NotFound},
		{"rename over a directory", control.FileRequest{Op: control.FileRename, Path: "/etc/passwd", Target: "/d"}, fault.Invalid},
		{"rename to dots", control.FileRequest{Op: control.FileRename, Path: "/etc/passwd", Target: "/d/.."}, fault.Invalid},
		{"rename to NUL", control.FileRequest{Op: control.FileRename, Path: "/etc/passwd", Target: "/a\x00b"}, fault.Invalid},
		{"rename out of proc", control.FileRequest{Op: control.FileRename, Path: "/proc/1/mem", Target: "/d/x"}, fault.Invalid},
		{"remove what is not there", control.FileRequest{Op: control.FileRemove, Path: "/none"}, fault.NotFound},
		{"remove a directory", control.FileRequest{Op: control.FileRemove, Path: "/d"}, fault.Invalid},
		{"remove the root", control.FileRequest{Op: control.FileRemove, Path: "/"}, fault.Invalid},
		{"owner beyond the map", control.FileRequest{Op: control.FileCreate, Path: "/x", UID: 70000}, fault.Invalid},
		{"mode beyond bits", control.FileRequest{Op: control.FileMkdir, Path: "/x", Mode: 0o100644}, fault.Invalid},
		{"a running program", control.FileRequest{Op: control.FileCreate, Path: "/busy"}, fault.Conflict},
		{"empty path", control.FileRequest{Op: control.FileStat}, fault.Invalid},
		{"NUL", control.FileRequest{Op: control.FileStat, Path: "/a\x00b"}, fault.Invalid},
		{"long path", control.FileRequest{Op: control.FileStat, Path: strings.Repeat("/a", 3000)}, fault.Invalid},
		{"long name", control.FileRequest{Op: control.FileStat, Path: "/" + strings.Repeat("a", 300)}, fault.Invalid},
		{"no operation", control.FileRequest{Op: "fly", Path: "/"}, fault.Invalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, f, err := i.File(c.req)
			if !fault.Is(err, c.kind) {
				t.Errorf("error %v of kind %q, want %q", err, fault.KindOf(err), c.kind)
			}
			if f != nil {
				t.Error("a file came with it")
				f.Close()
			}
		})
	}
	if e, err := i.Stat("/fifo", false); err != nil || e.Mode&unix.S_IFMT != unix.S_IFIFO {
		t.Errorf("a fifo can be described: %+v, %v", e, err)
	}
}

// No path leads out: whatever a link says, it means the sandbox's own file.
func TestNoPathLeadsOut(t *testing.T) {
	i := boot(t)
	sh(t, i, `echo inside >/etc/mark
		ln -s / /r1; ln -s ../../../../../.. /r2; ln -s /proc/self/root /r3; ln -s /proc/1/root /r4; ln -s /proc/1/cwd /r5; ln -s /proc/self/fd/100 /r6`)
	for _, p := range []string{"/etc/mark", "etc/mark", "/../../../etc/mark", "/r1/etc/mark", "/r2/etc/mark", "/usr/../../../etc/mark", "//etc//mark"} {
		if got := read(t, i, p); got != "inside\n" {
			t.Errorf("%s has %q", p, got)
		}
	}
	for _, p := range []string{"/r3/etc/mark", "/r4/etc/mark", "/r5/etc/mark", "/proc/self/root/etc/mark", "/proc/1/root", "/r6", "/proc/1/exe", "/proc/self/fd/100"} {
		if f, err := i.OpenFile(p); err == nil {
			f.Close()
			t.Errorf("%s opens", p)
		}
		if f, err := i.CreateFile(p, 0o600, 0, 0); err == nil {
			f.Close()
			t.Errorf("%s is made", p)
		}
	}
	if e, err := i.Stat("/", false); err != nil || e.Mode&unix.S_IFMT != unix.S_IFDIR || e.UID != 0 {
		t.Errorf("/: %+v, %v", e, err)
	}
}

// A directory moves about while paths through it and ".." are looked up.
func TestPathsDoNotLeaveInRaces(t *testing.T) {
	i := boot(t)
	sh(t, i, "mkdir -p /a/b/c /x; echo inside >/mark")
	p, r, err := start(t, i, sandbox.Command{Argv: []string{"python3", "-c", `
import os
while True:
    os.rename("/a/b", "/x/b"); os.rename("/x/b", "/a/b")
    os.symlink("/", "/a/l"); os.unlink("/a/l"); os.mkdir("/a/l"); os.rmdir("/a/l")`}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	good := 0
	for range 500 {
		for _, path := range []string{"/a/b/c/../../../mark", "/a/b/c/../../../../../../mark", "/a/l/mark", "/a/l/../mark"} {
			f, err := i.OpenFile(path)
			if err != nil {
				continue
			}
			b, _ := io.ReadAll(f)
			f.Close()
			if string(b) != "inside\n" {
				t.Fatalf("%s has %q", path, b)
			}
			good++
		}
	}
	if good == 0 {
		t.Error("no lookup succeeded")
	}
	if err := i.Signal(p.PID(), unix.SIGKILL); err != nil {
		t.Error(err)
	}
	<-p.Done()
}

func TestHugeDirectoryIsRefused(t *testing.T) {
	i := boot(t)
	if out, code := run(t, i, sandbox.Command{Argv: []string{"python3", "-c", fmt.Sprintf(`
import os
os.mkdir("/dev/shm/d")
for n in range(%d): os.mknod("/dev/shm/d/%%d" %% n)`, sandbox.MaxEntries)}}); code != 0 {
		t.Fatal(out)
	}
	es, err := i.List("/dev/shm/d")
	if err != nil || len(es) != sandbox.MaxEntries {
		t.Fatalf("%d entries, %v", len(es), err)
	}
	sh(t, i, "touch /dev/shm/d/one-more")
	if _, err := i.List("/dev/shm/d"); !fault.Is(err, fault.Exhausted) {
		t.Errorf("one more: %v", err)
	}
}

func TestLeaseDoesNotBlock(t *testing.T) {
	i := boot(t)
	p, r, err := start(t, i, sandbox.Command{Argv: []string{"python3", "-c", `
import fcntl, signal, time, sys
signal.signal(signal.SIGIO, signal.SIG_IGN)
f = open("/leased", "w")
fcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("held", flush=True)
time.sleep(100)`}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if line := make([]byte, 5); must(io.ReadFull(r, line)) != nil || string(line) != "held\n" {
		t.Skipf("no lease can be taken here: %q", line)
	}
	before := time.Now()
	if f, err := i.OpenFile("/leased"); err == nil {
		f.Close()
	} else if !fault.Is(err, fault.Conflict) {
		t.Errorf("open: %v", err)
	}
	if d := time.Since(before); d > time.Second {
		t.Errorf("the open took %v", d)
	}
	if err := i.Signal(p.PID(), unix.SIGKILL); err != nil {
		t.Error(err)
	}
}

func must[T any](_ T, err error) error { return err }
