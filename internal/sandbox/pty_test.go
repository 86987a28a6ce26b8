package sandbox_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/confine"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/sandbox"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

func TestTerminal(t *testing.T) {
	i := boot(t)
	master, slave, err := i.OpenPTY(control.Window{Rows: 33, Cols: 111})
	if err != nil {
		t.Fatal(err)
	}
	m := os.NewFile(uintptr(master), "master")
	defer m.Close()
	p, err := i.Exec(sandbox.Command{
		Argv: []string{"sh", "-c", `tty; stty size; stat -c %u $(tty); echo again >/dev/tty; ps -o tty= -p $$; trap 'stty size; exit 3' WINCH; echo ready; while :; do sleep 0.01; done`},
		User: sandbox.User{User: confine.User{UID: 1000, GID: 1000}}, TTY: true,
	}, [3]int{slave, slave, slave})
	unix.Close(slave)
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	for b := make([]byte, 256); !strings.Contains(got.String(), "ready"); {
		n, err := m.Read(b)
		if err != nil {
			t.Fatalf("%v after %q", err, &got)
		}
		got.Write(b[:n])
	}
	if err := sandbox.Resize(master, control.Window{Rows: 40, Cols: 80}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(&got, m); err != nil && !errors.Is(err, unix.EIO) { // EIO: the last slave is closed
		t.Error(err)
	}
	<-p.Done()
	if want := "/dev/pts/0\r\n33 111\r\n1000\r\nagain\r\npts/0\r\nready\r\n40 80\r\n"; got.String() != want || p.ExitCode() != 3 {
		t.Errorf("exit %d, terminal shows %q, want %q", p.ExitCode(), &got, want)
	}
}

// One sandbox leaves terminals for the others.
func TestTerminalsAreLimited(t *testing.T) {
	i := boot(t)
	for n := 0; ; n++ {
		master, slave, err := i.OpenPTY(control.Window{})
		if err != nil {
			if n != 256 || !fault.Is(err, fault.Exhausted) {
				t.Errorf("after %d terminals: %v", n, err)
			}
			break
		}
		defer unix.Close(master)
		defer unix.Close(slave)
		if n > 256 {
			t.Fatal("no limit")
		}
	}
	if m, s, err := boot(t).OpenPTY(control.Window{}); err != nil {
		t.Errorf("another sandbox: %v", err)
	} else {
		unix.Close(m)
		unix.Close(s)
	}
}

func TestSignals(t *testing.T) {
	i := boot(t)
	p, r, err := start(t, i, sandbox.Command{Argv: []string{"sh", "-c", "trap 'echo caught; kill -9 0' TERM; sleep 100 & echo ready; wait"}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := io.ReadFull(r, make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	if err := i.Signal(p.PID(), unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	rest, _ := io.ReadAll(r)
	<-p.Done()
	if string(rest) != "caught\n" || p.ExitCode() != 137 {
		t.Errorf("%q, exit %d", rest, p.ExitCode())
	}
	if err := i.Signal(p.PID(), unix.SIGTERM); !fault.Is(err, fault.NotFound) {
		t.Errorf("signal to the dead: %v", err)
	}
	p, r, err = start(t, i, sandbox.Command{Argv: []string{"sh", "-c", "sleep 100 & sleep 100 & echo ready; wait"}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := io.ReadFull(r, make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	if err := i.SignalGroup(p.PID(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	// The leader has ended; the others are killed, too, and end in their time.
	if out, _ := sh(t, i, "timeout 20 sh -c 'while pgrep -x sleep >/dev/null; do :; done'; pgrep -c -x sleep"); out != "0\n" {
		t.Errorf("%s sleeps are left", out)
	}
	for _, pid := range []int{1, 0, -1, -5} {
		if err := i.Signal(pid, unix.SIGKILL); !fault.Is(err, fault.Invalid) {
			t.Errorf("signal to %d: %v", pid, err)
		}
	}
}
