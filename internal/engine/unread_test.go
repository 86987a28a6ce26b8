package engine_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// unreadProgram prints what nobody reads, says in a file that it has, and goes
// on when another file is there.
const unreadProgram = `
import os, sys, time
how = sys.argv[1]
os.write(1, b"first\n")
if how != "terminal": os.write(2, b"error\n")
if how == "closed":
    for fd in 0, 1, 2: os.close(fd)
open("/root/" + how, "w").write("printed")
while not os.path.exists("/root/go"): time.sleep(.01)
if how != "closed": os.write(1, b"second\n")
`

// all reads an output to its end.
func all(t *testing.T, f *os.File) string {
	t.Helper()
	check(t, f.SetReadDeadline(time.Now().Add(20*time.Second)))
	var b bytes.Buffer
	if _, err := io.Copy(&b, f); err != nil && !errors.Is(err, unix.EIO) {
		t.Fatalf("%v after %q", err, b.String())
	}
	return b.String()
}

// What a program had printed before the stop, and nobody had read, is read
// once in the live sandbox, once in each copy and once after each rollback.
func TestUnreadOutputIsOfTheProcess(t *testing.T) {
	h := newHost(t)
	box := h.create()
	cases := []struct {
		name, want string
		tty        bool
	}{
		{"pipe", "first\nsecond\n", false},
		{"closed", "first\n", false},
		{"terminal", "first\r\nsecond\r\n", true},
	}
	live := make([]*talk, len(cases))
	for i, c := range cases {
		live[i] = h.exec(box, c.tty, "python3", "-c", unreadProgram, c.name)
	}
	// A terminal's output that is unread when its last holder closes it.
	leaver := h.exec(box, true, "python3", "-c", unreadProgram, "closed")
	sh := h.exec(box, false, "sh")
	sh.ask("cd /root; until [ -s pipe ] && [ -s closed ] && [ -s terminal ]; do sleep .01; done; echo printed", "printed")
	cp := h.checkpoint(box)
	cp2 := h.checkpoint(box) // what was put back is there for the next

	look := func(where string, ss func(*talk) *talk, sh *talk) {
		t.Helper()
		sh.ask(": > /root/go; echo gone on", "gone on")
		for i, c := range cases {
			if got := all(t, ss(live[i]).out); got != c.want {
				t.Errorf("%s: the %s has %q, want %q", where, c.name, got, c.want)
			}
		}
		if got := all(t, ss(leaver).out); got != "first\r\nerror\r\n" {
			t.Errorf("%s: the terminal that was left has %q", where, got)
		}
	}
	for i, from := range []control.Checkpoint{cp, cp2} {
		id := h.id("sb")
		_, err := forked(h.engine.Fork(background, control.ForkRequest{
			From: control.CheckpointRef{Sandbox: box, Checkpoint: from.ID}, Sandboxes: []string{id}, Hostnames: []string{""},
		}))
		check(t, err)
		look(fmt.Sprint("fork ", i+1), func(x *talk) *talk { return h.adopt(id, x.id) }, h.adopt(id, sh.id))
	}
	_, ss := h.rollback(box, cp.ID)
	look("rollback", func(x *talk) *talk { return ss[x.id] }, ss[sh.id])
	_, ss = h.rollback(box, cp2.ID)
	look("second rollback", func(x *talk) *talk { return ss[x.id] }, ss[sh.id])
}

func TestUnreadOutputIsReadByTheLiveSessionToo(t *testing.T) {
	h := newHost(t)
	box := h.create()
	x := h.exec(box, true, "python3", "-c", unreadProgram, "terminal")
	sh := h.exec(box, false, "sh")
	sh.ask("until [ -s /root/terminal ]; do sleep .01; done; echo printed", "printed")
	for range 20 {
		h.checkpoint(box)
	}
	sh.ask(": > /root/go; echo gone on", "gone on")
	if got := all(t, x.out); got != "first\r\nsecond\r\n" {
		t.Errorf("the terminal has %q", got)
	}
}

// records is what is read of a program that prints numbers of eight digits
// without end, which is checked to be whole.
type records struct {
	t    *testing.T
	part []byte
	next int // 0: not known yet
	n    int
}

func (r *records) take(p []byte) bool {
	r.n += len(p)
	r.part = append(r.part, p...)
	for len(r.part) > 0 {
		line, rest, ok := bytes.Cut(r.part, []byte("\n"))
		if !ok {
			return true
		}
		if r.next > 0 || len(line) == 8 { // a copy may begin in the middle of one
			n, err := strconv.Atoi(string(line))
			if err != nil || len(line) != 8 || r.next > 0 && n != r.next {
				r.t.Errorf("%q where %d belongs", line, r.next)
				return false
			}
			r.next = n + 1
		}
		r.part = slices.Clone(rest)
	}
	return true
}

// A terminal whose output is read while checkpoints are taken loses nothing,
// and none of it changes places.
func TestCheckpointsOfTerminalThatIsRead(t *testing.T) {
	h := newHost(t)
	box := h.create()
	s, files, err := h.engine.Exec(background, control.ExecRequest{
		Sandbox: box, Session: h.id("se"), TTY: true, Env: []string{"PATH=/usr/bin:/bin"},
		Argv: []string{"python3", "-c", `
import os, tty
tty.setraw(1)
n = 10000000
while True:
    p = b"".join(b"%d\n" % (n + i) for i in range(50)); n += 50
    while p: p = p[os.write(1, p):]
`},
	})
	check(t, err)
	master, guard := files[0], files[1]
	defer master.Close()
	defer guard.Close()
	check(t, unix.SetNonblock(int(master.Fd()), true))
	done, over := make(chan struct{}), make(chan struct{})
	defer func() { <-over }()
	stop := sync.OnceFunc(func() { close(done) })
	defer stop()
	var read records
	go func() { // as the node does
		defer close(over)
		read.t = t
		buf := make([]byte, 1000)
		for {
			select {
			case <-done:
				return
			default:
			}
			check(t, unix.Flock(int(guard.Fd()), unix.LOCK_EX))
			n, err := unix.Read(int(master.Fd()), buf)
			check(t, unix.Flock(int(guard.Fd()), unix.LOCK_UN))
			if err == unix.EAGAIN {
				_, _ = unix.Poll([]unix.PollFd{{Fd: int32(master.Fd()), Events: unix.POLLIN}}, 100)
				continue
			}
			if err != nil || !read.take(buf[:n]) {
				t.Errorf("read: %v", err)
				return
			}
		}
	}()
	for range 12 {
		cp := h.checkpoint(box)
		id := h.id("sb")
		_, err := forked(h.engine.Fork(background, control.ForkRequest{
			From: control.CheckpointRef{Sandbox: box, Checkpoint: cp.ID}, Sandboxes: []string{id}, Hostnames: []string{""},
		}))
		check(t, err)
		copied := records{t: t}
		x := h.adopt(id, s.ID)
		buf := make([]byte, 4096)
		for copied.n < 30000 {
			check(t, x.out.SetReadDeadline(time.Now().Add(10*time.Second)))
			n, err := x.out.Read(buf)
			check(t, err)
			if !copied.take(buf[:n]) {
				t.Fatal("in the copy")
			}
		}
		check(t, h.engine.Remove(background, control.SandboxRequest{Sandbox: id}))
	}
	stop()
	<-over
	if read.n < 40000 {
		t.Errorf("only %d bytes were read", read.n)
	}
}
