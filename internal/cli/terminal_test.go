package cli_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// terminal is a user at a terminal: what the program shows is kept.
type terminal struct {
	t      *testing.T
	master *os.File
	slave  *os.File

	mu    sync.Mutex
	shown bytes.Buffer
	news  chan struct{}
}

func openTerminal(t *testing.T) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = master.Close() })
	raw, err := master.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var n int
	cerr := raw.Control(func(fd uintptr) {
		if err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); err == nil {
			n, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	})
	if err != nil || cerr != nil {
		t.Fatal(err, cerr)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = slave.Close() })
	term := &terminal{t: t, master: master, slave: slave, news: make(chan struct{}, 1)}
	go term.watch()
	return term
}

func (term *terminal) watch() {
	buf := make([]byte, 4096)
	for {
		n, err := term.master.Read(buf)
		term.mu.Lock()
		term.shown.Write(buf[:n])
		term.mu.Unlock()
		select {
		case term.news <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

// run starts a command on the terminal.
func (term *terminal) run(cmd *exec.Cmd) {
	term.t.Helper()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = term.slave, term.slave, term.slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		term.t.Fatal(err)
	}
}

func (term *terminal) write(s string) {
	term.t.Helper()
	if _, err := term.master.WriteString(s); err != nil {
		term.t.Fatal(err)
	}
}

// resize sets the terminal's size, which signals the program.
func (term *terminal) resize(rows, cols uint16) {
	term.t.Helper()
	if err := unix.IoctlSetWinsize(int(term.slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols}); err != nil {
		term.t.Fatal(err)
	}
}

// await waits until the terminal shows a match, and forgets what is up to it.
func (term *terminal) await(pattern string) string {
	term.t.Helper()
	re := regexp.MustCompile(pattern)
	deadline := time.After(20 * time.Second)
	for {
		term.mu.Lock()
		if at := re.FindIndex(term.shown.Bytes()); at != nil {
			found := string(term.shown.Next(at[1])[at[0]:])
			term.mu.Unlock()
			return found
		}
		shown := term.shown.String()
		term.mu.Unlock()
		select {
		case <-term.news:
		case <-deadline:
			term.t.Fatalf("the terminal does not show %q but %q", pattern, shown)
		}
	}
}

func (term *terminal) settings() unix.Termios {
	term.t.Helper()
	s, err := unix.IoctlGetTermios(int(term.slave.Fd()), unix.TCGETS)
	if err != nil {
		term.t.Fatal(err)
	}
	return *s
}

func TestShellOnATerminal(t *testing.T) {
	state := daemon(t)
	if out, err := sandtree(state, "create", "--template", "test", "--name", "tty").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Cleanup(func() {
		if out, err := sandtree(state, "rm", "-f", "tty").CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
	term := openTerminal(t)
	term.resize(24, 80)
	before := term.settings()
	shell := sandtree(state, "shell", "tty")
	term.run(shell)

	term.write("echo size $(stty size)\r")
	term.await(`size 24 80`)
	term.resize(40, 100)
	term.write("echo size $(stty size)\r")
	term.await(`size 40 100`)
	// ctrl-c goes to the program inside.
	term.write("sh -c 'echo sl\"\"eeps; exec sleep 1000'\r")
	term.await(`sleeps`)
	term.write("\x03")
	term.write("KEPT=yes; echo st''ill here\r")
	term.await(`still here`)

	// ctrl-p ctrl-q leaves it.
	term.write("\x10\x11")
	id := strings.TrimSpace(strings.TrimPrefix(term.await(`attach se-[a-z0-9]+`), "attach "))
	if err := shell.Wait(); err != nil {
		t.Errorf("leaving: %v", err)
	}
	if after := term.settings(); after != before {
		t.Errorf("the terminal's settings changed from %+v to %+v", before, after)
	}

	// And attach comes back.
	again := sandtree(state, "attach", id)
	term.run(again)
	term.write("echo ke''pt $KEPT\r")
	term.await(`kept yes`)
	term.write("exit 5\r")
	if err := again.Wait(); again.ProcessState.ExitCode() != 5 {
		t.Errorf("exit: %v", err)
	}
}

// A terminal that is no terminal is refused before anything runs.
func TestTerminalNeedsOne(t *testing.T) {
	state := daemon(t)
	cmd := sandtree(state, "run", "--template", "test", "--name", "never", "-it", "--", "true")
	cmd.Stdin = strings.NewReader("")
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != 125 || !strings.Contains(string(out), "not a terminal") {
		t.Errorf("%v: %s", err, out)
	}
	if err := sandtree(state, "show", "never").Run(); err == nil {
		t.Error("the sandbox was made")
	}
}
