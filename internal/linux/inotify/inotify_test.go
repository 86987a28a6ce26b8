package inotify

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/roottest"
)

// bench is an instance with a directory.
type bench struct {
	t       *testing.T
	fd      int
	dir     string
	watches []Watch // as fdinfo lists them: the newest first
	scratch *Scratch
}

func newBench(t *testing.T) *bench {
	roottest.Need(t, "a mount")
	b := &bench{t: t, fd: instance(t), dir: t.TempDir()}
	var err error
	if b.scratch, err = NewScratch(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.scratch.Close() })
	return b
}

func instance(t *testing.T) int {
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

func (b *bench) must(errs ...error) {
	b.t.Helper()
	for _, err := range errs {
		if err != nil {
			b.t.Fatal(err)
		}
	}
}

func (b *bench) path(name string) string { return filepath.Join(b.dir, name) }

func (b *bench) watch(name string, mask uint32) int {
	b.t.Helper()
	n, err := unix.InotifyAddWatch(b.fd, b.path(name), mask)
	b.must(err)
	b.watches = slices.Insert(b.watches, 0, Watch{n, mask, b.path(name)})
	return n
}

// gone says that the kernel has removed a watch.
func (b *bench) gone(number int) {
	b.watches = slices.DeleteFunc(b.watches, func(w Watch) bool { return w.Number == number })
}

// listed are numbers and masks as fdinfo lists them.
func listed(t *testing.T, fd int) (out []string) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/fdinfo/" + strconv.Itoa(fd))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "inotify ") {
			out = append(out, line)
		}
	}
	return out
}

// plain numbers cookies by their first appearance: the kernel gives new ones.
func plain(events []Event) []Event {
	seen := map[uint32]uint32{}
	out := slices.Clone(events)
	for i := range out {
		if c := out[i].Cookie; c != 0 {
			if seen[c] == 0 {
				seen[c] = uint32(len(seen) + 1)
			}
			out[i].Cookie = seen[c]
		}
	}
	return out
}

// check looks twice, has another instance get the same, and compares what both give.
func (b *bench) check() []Event {
	t := b.t
	t.Helper()
	before := listed(t, b.fd)
	began := time.Now()
	first, next, err := b.scratch.Look(b.fd, b.watches)
	took := time.Since(began)
	b.must(err)
	second, again := first, next
	if len(first) < 100 {
		second, again, err = b.scratch.Look(b.fd, b.watches)
		b.must(err)
	}
	if next != again || !slices.Equal(plain(first), plain(second)) {
		t.Fatalf("a second look: next %d and %d;\n%v\n%v", next, again, plain(first), plain(second))
	}
	copied := instance(t)
	b.must(b.scratch.Put(copied, first, b.watches, next))
	for _, fd := range []int{b.fd, copied} {
		if after := listed(t, fd); !slices.Equal(before, after) {
			t.Errorf("watches were\n%sand are\n%s", before, after)
		}
		got, err := Take(fd)
		b.must(err)
		if !slices.Equal(plain(first), plain(got)) {
			t.Fatalf("%d events were\n%.4000v\nand %d are\n%.4000v", len(first), plain(first), len(got), plain(got))
		}
		n, err := unix.InotifyAddWatch(fd, "/usr", unix.IN_MOVE_SELF)
		if err != nil || n != next {
			t.Errorf("the next watch got the number %d instead of %d: %v", n, next, err)
		}
		_, err = unix.InotifyRmWatch(fd, uint32(n))
		b.must(err)
		if got, err := Take(fd); err != nil || len(got) != 1 {
			t.Errorf("%v %v", got, err)
		}
		b.must(SetNext(fd, next))
	}
	t.Logf("%d events, %v", len(first), took)
	return first
}

// Events of each kind come back, twice, and in a copy, and the watches go on telling.
func TestEventsOfAllKinds(t *testing.T) {
	b := newBench(t)
	const all = unix.IN_ALL_EVENTS
	b.must(os.MkdirAll(b.path("a/sub"), 0o755), os.Mkdir(b.path("b"), 0o755))
	for _, name := range []string{"file", "doomed", "once", "a/child"} {
		b.must(os.WriteFile(b.path(name), []byte("x"), 0o644))
	}
	first := b.watch("b", all)
	b.watch("a", all)
	b.watch("file", all)
	b.watch("a/sub", all|unix.IN_EXCL_UNLINK)
	doomed, removed := b.watch("doomed", all), b.watch("a/child", unix.IN_ATTRIB)
	once := b.watch("once", unix.IN_MODIFY|unix.IN_ONESHOT)
	b.must(
		os.WriteFile(b.path("a/new"), []byte("x"), 0o644),
		os.Rename(b.path("a/new"), b.path("a/renamed")),
		os.Rename(b.path("a/renamed"), b.path("b/moved")),
		os.Rename(b.path("b/moved"), b.path("out")),
		os.Rename(b.path("out"), b.path("a/in")),
		os.Remove(b.path("a/in")),
		os.Mkdir(b.path("b/"+strings.Repeat("ü", 127)), 0o755),
		os.Rename(b.path("b/"+strings.Repeat("ü", 127)), b.path("a/dir")),
		os.Remove(b.path("a/dir")),
		os.Chmod(b.path("a"), 0o700), os.Chmod(b.path("a/child"), 0o600), os.Chmod(b.path("file"), 0o600),
		(&Scratch{root: unix.AT_FDCWD}).shorten(b.path("file")),
		os.WriteFile(b.path("file"), []byte("longer"), 0),
		os.WriteFile(b.path("once"), []byte("longer"), 0),
		os.Rename(b.path("a/sub"), b.path("b/sub")),
		os.Rename(b.path("b/sub"), b.path("a/sub")),
		os.Remove(b.path("doomed")),
	)
	for _, name := range []string{"a", "file", "a/sub", "a/child"} {
		f, err := os.Open(b.path(name))
		b.must(err)
		if strings.HasSuffix(name, "e") || strings.HasSuffix(name, "child") {
			_, err = f.Read(make([]byte, 1))
		} else {
			_, err = f.ReadDir(-1)
		}
		b.must(err, f.Close())
	}
	_, err := unix.InotifyRmWatch(b.fd, uint32(removed))
	b.must(err)
	for _, n := range []int{doomed, removed, once} {
		b.gone(n)
	}
	events := b.check()
	seen := uint32(0)
	for _, e := range events {
		seen |= e.Mask
	}
	if want := uint32(all | unix.IN_ISDIR | unix.IN_IGNORED); seen != want {
		t.Errorf("events of the kinds %#x instead of %#x", seen, want)
	}
	b.must(os.WriteFile(b.path("b/later"), nil, 0o644))
	got, err := Take(b.fd)
	if err != nil || len(got) == 0 || got[0] != (Event{first, unix.IN_CREATE, 0, "later"}) {
		t.Errorf("afterwards %v %v", got, err)
	}
}

// A number may be given again while events of the watch that had it are unread.
func TestNumberGivenAgain(t *testing.T) {
	b := newBench(t)
	b.must(os.Mkdir(b.path("d"), 0o755), os.WriteFile(b.path("f"), nil, 0o644))
	n := b.watch("d", unix.IN_CREATE)
	b.must(os.WriteFile(b.path("d/one"), nil, 0o644), remove(b.fd, n), SetNext(b.fd, n))
	b.watches = nil
	if got := b.watch("f", unix.IN_MODIFY); got != n {
		t.Fatal(got, n)
	}
	b.must(os.WriteFile(b.path("f"), []byte("x"), 0o644))
	if got := b.check(); len(got) != 3 {
		t.Error(got)
	}
}

// Full queues come back too, with the overflow where it was.
func TestFullQueues(t *testing.T) {
	room := usualRoom()
	for _, c := range []struct{ make, read, more, want int }{
		{room - 2, 0, 0, room - 2}, {room, 0, 0, room + 1}, {room + 2, room / 2, 6, room/2 + 7},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			b := newBench(t)
			b.must(os.Mkdir(b.path("d"), 0o755))
			b.must(unix.Mknod(b.path("d/f"), unix.S_IFREG, 0))
			b.watch("d", unix.IN_ATTRIB)
			happen := func(n int) {
				for i := range n {
					b.must(unix.Fchmodat(unix.AT_FDCWD, b.path([]string{"d", "d/f"}[i%2]), 0o700, 0))
				}
			}
			happen(c.make)
			for range c.read {
				_, err := read(b.fd, make([]byte, 2*header))
				b.must(err)
			}
			happen(c.more)
			if got := b.check(); len(got) != c.want {
				t.Errorf("%d events instead of %d", len(got), c.want)
			}
		})
	}
}

// What is no event of the kernel's is an error, and the instance is as usable as before.
func TestNoEvents(t *testing.T) {
	b := newBench(t)
	for _, e := range []Event{
		{Watch: 1, Mask: unix.IN_CREATE, Name: "a/b"}, {Watch: 1, Mask: unix.IN_CREATE, Name: ".."}, {Watch: 0, Mask: unix.IN_OPEN},
		{Watch: 1, Mask: unix.IN_CREATE}, {Watch: 1, Mask: 0}, {Watch: 1, Mask: unix.IN_OPEN | unix.IN_ACCESS}, {Watch: 1, Mask: 1 << 20},
		{Watch: 1, Mask: unix.IN_MOVED_FROM}, {Watch: 1, Mask: unix.IN_MOVE_SELF, Name: "x"},
	} {
		fd := instance(t)
		if err := b.scratch.Put(fd, []Event{e}, []Watch{{5, unix.IN_CREATE, b.dir}}, 9); err == nil {
			t.Errorf("%+v was put", e)
		}
		if n, err := Unread(fd); n != 0 || err != nil || len(listed(t, fd)) != 1 {
			t.Errorf("%+v: %d bytes unread, %v, watches %v", e, n, err, listed(t, fd))
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("\x01\x00\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x10\x00\x00\x00name\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"))
	f.Add([]byte("\xff\xff\xff\xff\x00\x40\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"))
	f.Add(make([]byte, 15))
	f.Fuzz(func(t *testing.T, b []byte) {
		events, err := parse(nil, b)
		if err == nil && size(events) > len(b) {
			t.Errorf("%v are larger than %q", events, b)
		}
		if steps, err := plan(events); err == nil && len(steps) > len(events) {
			t.Errorf("%v became %v", events, steps)
		}
	})
}
