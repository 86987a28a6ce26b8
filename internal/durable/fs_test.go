package durable_test

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/durable"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/loop"
	"github.com/sandtree/sandtree/internal/linux/mount"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// small mounts a tmpfs of a size in bytes until the test ends.
func small(t *testing.T, size int) string {
	t.Helper()
	dir := t.TempDir()
	fd, err := mount.New("tmpfs").Set("size", fmt.Sprint(size)).Mount(0)
	must(t, err)
	defer unix.Close(fd)
	must(t, mount.Attach(fd, dir))
	t.Cleanup(func() { must(t, mount.Unmount(dir)) })
	return dir
}

// TestFullDisk fills the disk in the middle of writes, again and again: what is
// durable stays, and a collection makes room.
func TestFullDisk(t *testing.T) {
	fs := small(t, 3<<20)
	dir := filepath.Join(fs, "r")
	r, err := durable.Open(dir, durable.Options{})
	must(t, err)
	defer func() { must(t, r.Close()) }()
	w := newWorld(t, 8)
	states := map[string]state{}
	var kept []string
	full, parent := 0, ""
	for i := 0; i < 14 || full == 0 && i < 1000; i++ {
		c := w.step()
		c.Parent = parent
		if parent == "" { // nothing that a difference could be against
			for i := range c.Memory {
				c.Memory[i].Full = true
				c.Memory[i].Changed = spans(w.now.memory[c.Memory[i].PID])
			}
		}
		_, err := r.Write(t.Context(), c)
		if err == nil {
			states[c.ID] = w.still()
			kept = append(kept, c.ID)
			parent = c.ID
			continue
		}
		if !fault.Is(err, fault.Exhausted) || fault.HintOf(err) == "" {
			t.Fatalf("%v (%s)", err, fault.KindOf(err))
		}
		full++
		parent = "" // the next is against a state that was not kept
		sound(t, r)
		for _, id := range kept {
			check(t, r, id, states[id])
		}
		if entries, err := os.ReadDir(filepath.Join(dir, "tmp")); err != nil || len(entries) > 0 {
			t.Errorf("tmp has %v, %v", entries, err)
		}
		// A file of somebody else's fills it to the last byte.
		_, err = io.Copy(must1(os.Create(filepath.Join(fs, "filler")))(t), zeros{})
		if err == nil {
			t.Fatal("the disk does not end")
		}
		for _, id := range kept {
			must(t, r.Remove(id))
		}
		kept = nil
		collect(t, r)
		must(t, os.Remove(filepath.Join(fs, "filler")))
	}
	if full == 0 || len(states) < 3 {
		t.Errorf("%d records, and %d times the disk was full", len(states), full)
	}
	sound(t, r)
}

func must1(f *os.File, err error) func(testing.TB) *os.File {
	return func(t testing.TB) *os.File {
		must(t, err)
		t.Cleanup(func() { f.Close() })
		return f
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

func spans(m memory) (out []durable.Span) {
	for n := range m {
		out = append(out, durable.Span{Start: n * page, End: (n + 1) * page})
	}
	return out
}

// attach mounts a file system in a file.
func attach(t *testing.T, image, at string) (detach func()) {
	t.Helper()
	f, err := os.OpenFile(image, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	dev, err := loop.Attach(f, loop.Options{})
	must(t, err)
	defer dev.Close()
	fd, err := mount.New("ext4").Set("source", dev.Path()).Mount(0)
	must(t, err)
	defer unix.Close(fd)
	must(t, mount.Attach(fd, at))
	return func() { must(t, mount.Unmount(at)) }
}

// TestPowerLoss copies the disk below a keeper at random instants, without a sync
// and while the keeper stands, and starts from the copy: what was reported
// durable by then is there.
func TestPowerLoss(t *testing.T) {
	dir := t.TempDir()
	image := filepath.Join(dir, "disk")
	must(t, os.WriteFile(image, nil, 0o600))
	must(t, os.Truncate(image, 64<<20))
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", image).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	at := filepath.Join(dir, "disk.at")
	must(t, os.Mkdir(at, 0o755))
	detach := attach(t, image, at)
	k := startKeeper(t, filepath.Join(at, "r"), t.TempDir(), "1", "")
	p := newPromises()
	lines := make(chan string)
	go func() {
		defer close(lines)
		for b := make([]byte, 1); ; {
			var line []byte
			for {
				if _, err := k.out.Read(b); err != nil {
					return
				}
				if b[0] == '\n' {
					break
				}
				line = append(line, b[0])
			}
			lines <- string(line)
		}
	}()
	cuts, records := 0, 0
	for open := true; open; {
		timer := time.After(time.Duration(20+rand.IntN(200)) * time.Millisecond)
		for due := false; open && !due; {
			select {
			case line, ok := <-lines:
				if open = ok; ok {
					p.line(line)
				}
			case <-timer:
				due = true
			}
		}
		if !open {
			break
		}
		must(t, k.cmd.Process.Signal(unix.SIGSTOP))
		// What it wrote to its pipe before it stood may not have come yet; that
		// is then promised more than is asked for. A copy is of one instant if
		// a second is equal.
		copied := copyStill(t, image, filepath.Join(dir, "copy"))
		func() {
			on := filepath.Join(dir, "copy.at")
			must(t, os.MkdirAll(on, 0o755))
			done := attach(t, copied, on)
			defer done()
			if _, err := os.Stat(filepath.Join(on, "r")); err != nil && len(p.durable) == 0 {
				return // before it began
			}
			p.kept(t, filepath.Join(on, "r"))
		}()
		must(t, k.cmd.Process.Signal(unix.SIGCONT))
		cuts++
		records += len(p.durable)
		if t.Failed() || cuts >= 5 && records > 0 { // a busy machine is cut off before the first
			break
		}
	}
	_ = k.cmd.Process.Kill()
	for range lines {
	}
	k.end(t)
	detach()
	if cuts == 0 || records == 0 {
		t.Errorf("%d cuts, %d records", cuts, records)
	}
	t.Logf("%d cuts with %d durable records in all", cuts, records)
}

func copyStill(t *testing.T, from, to string) string {
	t.Helper()
	read := func() []byte {
		b, err := os.ReadFile(from)
		must(t, err)
		return b
	}
	a := read()
	for range 100 {
		b := read()
		if bytes.Equal(a, b) {
			must(t, os.WriteFile(to, b, 0o600))
			return to
		}
		a = b // the kernel wrote something back meanwhile
	}
	t.Fatal("the disk does not stand still")
	return ""
}
