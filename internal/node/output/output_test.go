package output_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/roottest"
	"github.com/sandtree/sandtree/internal/node/output"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("OUTPUT_TEST_DRAIN"); dir != "" {
		drain(dir, os.Getenv("OUTPUT_TEST_KIND") == "terminal")
	}
	os.Exit(m.Run())
}

// drain fills a log from descriptor 3, with the guard in 4, until it is killed
// or the source ends.
func drain(dir string, terminal bool) {
	l, err := output.Open(dir, "s", terminal, slog.Default())
	if err == nil && terminal {
		err = l.FillTerminal(os.NewFile(3, "source"), os.NewFile(4, "guard"))
	} else if err == nil {
		err = l.Streams[0].Fill(os.NewFile(3, "source"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Print("!")
	for {
		changed := l.Streams[0].Changed()
		if l.Streams[0].Settled() {
			os.Exit(0)
		}
		<-changed
	}
}

func openLog(t *testing.T, dir string, terminal bool) *output.Log {
	t.Helper()
	l, err := output.Open(dir, "s", terminal, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

// openGuard opens a terminal's guard, and again, as the supervisor does.
func openGuard(t *testing.T) (guard *os.File, again func() *os.File) {
	t.Helper()
	pipe, _ := pipe(t)
	again = func() *os.File {
		f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", pipe.Fd()), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	return again(), again
}

// fill fills a log's first stream from a pipe or a terminal.
func fill(t *testing.T, l *output.Log, kind string, src *os.File) error {
	if kind == "terminal" {
		guard, _ := openGuard(t)
		return l.FillTerminal(src, guard)
	}
	return l.Streams[0].Fill(src)
}

// terminal opens a pseudo-terminal whose output comes out as it goes in.
func terminal(t *testing.T) (master, slave *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { master.Close() })
	conn, err := master.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var n int
	conn.Control(func(fd uintptr) {
		if err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); err == nil {
			n, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slave.Close() })
	fd := int(slave.Fd())
	tio, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	tio.Oflag &^= unix.OPOST
	tio.Lflag &^= unix.ECHO | unix.ICANON
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, tio); err != nil {
		t.Fatal(err)
	}
	return master, slave
}

// pad makes lines long, so that few calls write much.
var pad = strings.Repeat(".", 250)

// sequence writes numbered lines until it has written size bytes.
func sequence(w io.Writer, size int) error {
	var buf bytes.Buffer
	for i, done := 0, 0; done < size; {
		buf.Reset()
		for range 1 + i%97 {
			fmt.Fprintf(&buf, "line %d%s\n", i, pad)
			i++
		}
		n, err := w.Write(buf.Bytes())
		if err != nil {
			return err
		}
		done += n
	}
	return nil
}

// checkSequence reads a log to its end and wants whole numbered lines.
func checkSequence(t *testing.T, s *output.Stream, size int) {
	t.Helper()
	r := s.NewReader(0)
	defer r.Close()
	var all bytes.Buffer
	buf := make([]byte, 64<<10)
	for {
		n, at, err := r.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			break
		}
		if at != uint64(all.Len()) {
			t.Fatalf("a jump from %d to %d", all.Len(), at)
		}
		all.Write(buf[:n])
	}
	if all.Len() < size {
		t.Errorf("the log has %d bytes of %d", all.Len(), size)
	}
	for i := 0; all.Len() > 0; i++ {
		line, err := all.ReadString('\n')
		if want := fmt.Sprintf("line %d%s\n", i, pad); line != want || err != nil {
			t.Fatalf("the log has %q where %q belongs", line, want)
		}
	}
}

func waitFor(t *testing.T, s *output.Stream, what string, ok func() bool) {
	t.Helper()
	timeout := time.After(30 * time.Second)
	for {
		changed := s.Changed()
		if ok() {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			t.Fatalf("no %s within 30 s", what)
		}
	}
}

func TestKillOfTheDrainLosesNoByte(t *testing.T) {
	for _, kind := range []string{"pipe", "terminal"} {
		t.Run(kind, func(t *testing.T) {
			dir := t.TempDir()
			size := 48 << 20
			src, dst := pipe(t)
			guard, _ := openGuard(t)
			if kind == "terminal" {
				src, dst = terminal(t)
				size = 12 << 20
			}
			written := make(chan error, 1)
			go func() {
				err := sequence(dst, size)
				dst.Close()
				written <- err
			}()
			kills := 0
			for {
				cmd := exec.Command(os.Args[0])
				cmd.Env = append(os.Environ(), "OUTPUT_TEST_DRAIN="+dir, "OUTPUT_TEST_KIND="+kind)
				cmd.Stderr = os.Stderr
				cmd.ExtraFiles = []*os.File{src, guard}
				said, err := cmd.StdoutPipe()
				if err != nil {
					t.Fatal(err)
				}
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				said.Read(make([]byte, 1)) // it drains
				if kills < 15 {
					kill := time.AfterFunc(rand.N(8*time.Millisecond), func() { cmd.Process.Kill() })
					defer kill.Stop()
				}
				if cmd.Wait() == nil {
					break
				}
				if kills++; kills > 15 {
					t.Fatal("the log never filled")
				}
			}
			if err := <-written; err != nil {
				t.Fatal(err)
			}
			t.Logf("killed %d times", kills)
			checkSequence(t, openLog(t, dir, kind == "terminal").Streams[0], size)
		})
	}
}

func TestSlowReaderHoldsTheWriterAndLosesNothing(t *testing.T) {
	const size = 100 << 20
	l := openLog(t, t.TempDir(), false)
	s := l.Streams[0]
	src, dst := pipe(t)
	r := s.NewReader(0)
	if err := s.Fill(src); err != nil {
		t.Fatal(err)
	}
	sent := sha256.New()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer dst.Close()
		rnd := rand.NewChaCha8([32]byte{})
		io.CopyN(io.MultiWriter(dst, sent), rnd, size)
	}()
	waitFor(t, s, "full window", func() bool { return s.End() >= output.Window })
	got := sha256.New()
	buf := make([]byte, 1<<20)
	for {
		changed := s.Changed()
		settled := s.Settled()
		n, at, err := r.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		if lead := s.End() - at; lead > output.Window+1<<20 {
			t.Fatalf("the log is %d bytes ahead of its reader", lead)
		}
		got.Write(buf[:n])
		if n == 0 {
			if settled {
				break
			}
			<-changed
		}
	}
	<-done
	if r.Position() != size || !bytes.Equal(got.Sum(nil), sent.Sum(nil)) {
		t.Errorf("%d bytes of %d, or other ones, were read", r.Position(), size)
	}
}

func TestUnattendedFloodKeepsItsEnd(t *testing.T) {
	const size = output.Keep + 40<<20
	dir := t.TempDir()
	l := openLog(t, dir, false)
	s := l.Streams[0]
	src, dst := pipe(t)
	if err := s.Fill(src); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer dst.Close()
		io.CopyN(dst, rand.NewChaCha8([32]byte{}), size)
	}()
	waitFor(t, s, "end", func() bool { return s.Settled() })
	if s.End() != size || s.End()-s.Start() > output.Keep+8<<20 || s.End()-s.Start() < output.Keep {
		t.Errorf("the log has %d to %d", s.Start(), s.End())
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, "s.out"), &st); err != nil {
		t.Fatal(err)
	}
	if st.Blocks*512 > output.Keep+16<<20 {
		t.Errorf("the log takes %d bytes", st.Blocks*512)
	}
	start := s.Start()
	l.Close()
	again := openLog(t, dir, false).Streams[0]
	if again.Start() != start || again.End() != size {
		t.Errorf("after a restart the log has %d to %d, before %d to %d", again.Start(), again.End(), start, size)
	}
	r := again.NewReader(0)
	defer r.Close()
	buf := make([]byte, 8)
	if _, at, err := r.Read(buf); err != nil || at != start {
		t.Errorf("a reader from 0 begins at %d (%v), want %d", at, err, start)
	}
}

func TestSettleSaysWhenAllIsIn(t *testing.T) {
	for _, kind := range []string{"pipe", "terminal"} {
		t.Run(kind, func(t *testing.T) {
			l := openLog(t, t.TempDir(), kind == "terminal")
			s := l.Streams[0]
			src, dst := pipe(t)
			if kind == "terminal" {
				src, dst = terminal(t)
			}
			if err := fill(t, l, kind, src); err != nil {
				t.Fatal(err)
			}
			fmt.Fprint(dst, "all of it")
			if s.Settled() {
				t.Fatal("settled before it was asked")
			}
			s.Settle()
			waitFor(t, s, "settling", s.Settled) // dst is still open
			if s.End() != 9 {
				t.Errorf("the log has %d bytes", s.End())
			}
			fmt.Fprint(dst, ", and more")
			waitFor(t, s, "the rest", func() bool { return s.End() == 19 })
			s.Stop()
			fmt.Fprint(dst, "stays")
			if s.End() != 19 {
				t.Error("filled after Stop")
			}
			if err := fill(t, l, kind, src); err != nil {
				t.Fatal(err)
			}
			waitFor(t, s, "what waited", func() bool { return s.End() == 24 })
		})
	}
}

func TestFullDiskWaits(t *testing.T) {
	roottest.Need(t, "mounting")
	for _, kind := range []string{"pipe", "terminal"} {
		t.Run(kind, func(t *testing.T) {
			dir := t.TempDir()
			if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=2m"); err != nil {
				t.Skip(err)
			}
			t.Cleanup(func() { unix.Unmount(dir, 0) })
			ballast := filepath.Join(dir, "ballast")
			if err := os.WriteFile(ballast, make([]byte, 1<<20), 0o600); err != nil {
				t.Fatal(err)
			}
			l := openLog(t, dir, kind == "terminal")
			s := l.Streams[0]
			const size = 3 << 19 // more than there is
			src, dst := pipe(t)
			if kind == "terminal" {
				src, dst = terminal(t)
			}
			if err := fill(t, l, kind, src); err != nil {
				t.Fatal(err)
			}
			written := make(chan error, 1)
			go func() {
				written <- sequence(dst, size)
				dst.Close()
			}()
			waitFor(t, s, "filling", func() bool { return s.End() > 800<<10 })
			time.Sleep(2 * 250 * time.Millisecond) // it retries
			if s.End() >= size || s.Settled() {
				t.Fatalf("%d bytes fit", s.End())
			}
			os.Remove(ballast)
			waitFor(t, s, "the end", s.Settled)
			if err := <-written; err != nil {
				t.Error(err)
			}
			checkSequence(t, s, size)
			l.Close()
		})
	}
}

func TestTerminalIsNotReadWhileItsGuardIsHeld(t *testing.T) {
	l := openLog(t, t.TempDir(), true)
	s := l.Streams[0]
	master, slave := terminal(t)
	guard, open := openGuard(t)
	if err := l.FillTerminal(master, guard); err != nil {
		t.Fatal(err)
	}
	guard.Close() // it has its own
	fmt.Fprint(slave, "first")
	waitFor(t, s, "the first", func() bool { return s.End() == 5 })
	held := open()
	if err := unix.Flock(int(held.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(slave, "second")
	// Who holds the guard takes what is there, and may put it back.
	p := make([]byte, 100)
	if n, err := master.Read(p); err != nil || string(p[:n]) != "second" {
		t.Errorf("%q, %v", p[:n], err)
	}
	fmt.Fprint(slave, "second")
	held.Close()
	waitFor(t, s, "the second", func() bool { return s.End() == 11 })
	r := s.NewReader(0)
	defer r.Close()
	if n, _, err := r.Read(p); err != nil || string(p[:n]) != "firstsecond" {
		t.Errorf("%q, %v", p[:n], err)
	}
}

func TestWhatAKilledDrainTookFromATerminalIsLogged(t *testing.T) {
	dir := t.TempDir()
	master, slave := terminal(t)
	guard, again := openGuard(t)
	fmt.Fprint(again(), "first\x00\x00") // a reader was killed on the way to the log
	slave.Close()                        // and the terminal is hung up
	l := openLog(t, dir, true)
	if err := l.FillTerminal(master, guard); err != nil {
		t.Fatal(err)
	}
	waitFor(t, l.Streams[0], "end", l.Settled)
	l.Close()
	if got, err := os.ReadFile(filepath.Join(dir, "s.tty")); err != nil || string(got) != "first\x00\x00" {
		t.Errorf("the log has %q, %v", got, err)
	}
}
