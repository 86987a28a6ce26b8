package node_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/fault"
)

func TestExec(t *testing.T) {
	_, c := start(t)
	ctx := t.Context()
	sb := create(t, c, "")
	out, stderr, end := run(t, sb, "echo out; echo err >&2; exit 7", "")
	if out != "out\n" || stderr != "err\n" || end.ExitCode != 7 || !end.Ended || end.Reason != "" {
		t.Errorf("%q, %q, %+v", out, stderr, end)
	}
	out, _, _ = run(t, sb, "wc -c; cat", strings.Repeat("x", 1<<20))
	if out != "1048576\n" {
		t.Errorf("stdin: %q", out)
	}
	_, _, end = run(t, sb, "kill -9 $$", "")
	if end.ExitCode != 137 {
		t.Errorf("killed: %+v", end)
	}
	_, err := sb.Start(ctx, client.Command{Argv: []string{"/no/such/command"}})
	wantKind(t, err, fault.NotFound)
	_, err = sb.Exec(ctx, client.Command{})
	wantKind(t, err, fault.Invalid)
	// What did not start leaves no session.
	if all, err := sb.Sessions(ctx); err != nil || len(all) != 3 {
		t.Errorf("%d sessions, %v", len(all), err)
	}
	cmd := sh("sleep 1000")
	cmd.Timeout = 50 * time.Millisecond
	end, err = sb.Run(ctx, cmd, client.Stdio{})
	if err != nil || end.Reason != "timeout" || end.ExitCode != 137 {
		t.Errorf("timeout: %+v, %v", end, err)
	}
	// The output of an ended session can be had again.
	all, err := sb.Sessions(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var o, e bytes.Buffer
	a, err := all[0].Attach(ctx, client.AttachOptions{From: &client.Position{Stdout: 1}})
	if err != nil {
		t.Fatal(err)
	}
	if end, err := a.Copy(client.Stdio{Out: &o, Err: &e}); err != nil || o.String() != "ut\n" || e.String() != "err\n" || end.ExitCode != 7 {
		t.Errorf("again: %q, %q, %+v, %v", o.String(), e.String(), end, err)
	}
	// A background process that holds the pipe does not hold up the end.
	began := time.Now()
	if out, _, _ = run(t, sb, "sleep 1000 & echo on", ""); out != "on\n" || time.Since(began) > 5*time.Second {
		t.Errorf("background: %q after %s", out, time.Since(began))
	}
}

func TestTerminal(t *testing.T) {
	_, c := start(t)
	ctx := t.Context()
	sb := create(t, c, "")
	cmd := client.Command{Argv: []string{"/bin/sh"}, TTY: true, Window: client.Window{Rows: 24, Cols: 80}, Env: map[string]string{"PS1": "$ "}}
	a, err := sb.Exec(ctx, cmd)
	if err != nil {
		t.Fatal(err)
	}
	expect := func(a *client.Attachment, want string) (seen string) {
		t.Helper()
		for !strings.Contains(seen, want) {
			e, err := a.Next()
			if err != nil {
				t.Fatalf("%v instead of %q; seen %q", err, want, seen)
			}
			if o, ok := e.(client.Output); ok {
				seen += string(o.Data)
			}
		}
		return seen
	}
	fmt.Fprint(a, "stty size\n")
	expect(a, "24 80")
	if err := a.Resize(client.Window{Rows: 50, Cols: 132}); err != nil {
		t.Fatal(err)
	}
	// A resize does not wait behind input, so its effect is waited for.
	eventually(t, "the new size", func() bool {
		fmt.Fprint(a, "stty size; echo do''ne\n")
		return strings.Contains(expect(a, "done"), "50 132")
	})
	fmt.Fprint(a, "x=kept\n")
	if err := a.Detach(); err != nil {
		t.Fatal(err)
	}
	for {
		e, err := a.Next()
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := e.(client.Detached); ok {
			break
		}
	}
	if _, err := a.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("after a detach: %v", err)
	}
	se := c.SessionHandle(a.Session.ID)
	b, err := se.Attach(ctx, client.AttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	both, err := se.Attach(ctx, client.AttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(b, "echo $x-$x\n")
	expect(b, "kept-kept")
	expect(both, "kept-kept")
	both.Close()
	// A ctrl-c before the command has the terminal would go to the shell alone:
	// cat shows by its answer that it does.
	fmt.Fprint(b, "cat\nmark\n")
	for seen := ""; strings.Count(seen, "mark") < 2; {
		seen += expect(b, "mark")
	}
	fmt.Fprint(b, "\x03echo after\n")
	expect(b, "after")
	b.CloseStdin()
	end, err := b.Copy(client.Stdio{})
	if err != nil || !end.Ended {
		t.Errorf("end: %+v, %v", end, err)
	}
}

func TestKillAndWait(t *testing.T) {
	_, c := start(t)
	ctx := t.Context()
	sb := create(t, c, "w")
	se, err := sb.Start(ctx, sh("trap 'exit 9' TERM; echo up; while :; do sleep 0.01; done"))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the trap", func() bool {
		all, err := sb.Sessions(ctx)
		return err == nil && all[0].StdoutBytes == 3
	})
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	_, err = sb.Wait(short, "")
	wantKind(t, err, fault.Deadline)
	wantKind(t, se.Kill(ctx, 99, ""), fault.Invalid)
	other := create(t, c, "")
	wantKind(t, se.Kill(ctx, 15, other.ID), fault.Invalid)
	waited := make(chan client.WaitResult, 1)
	go func() {
		w, err := sb.Wait(ctx, "")
		if err != nil {
			t.Error(err)
		}
		waited <- w
	}()
	if err := se.Kill(ctx, 0, "w"); err != nil {
		t.Fatal(err)
	}
	if end, err := se.Wait(ctx); err != nil || end.ExitCode != 9 {
		t.Errorf("wait: %+v, %v", end, err)
	}
	if w := <-waited; w.State != client.Running || w.Session == nil || w.Session.ExitCode != 9 {
		t.Errorf("wait for the sandbox: %+v", w)
	}
	wantKind(t, se.Kill(ctx, 9, ""), fault.Conflict)
	wantKind(t, c.SessionHandle("se-none").Kill(ctx, 9, ""), fault.NotFound)
}

func TestSlowReaderLosesNothing(t *testing.T) {
	d, c := start(t)
	ctx := t.Context()
	sb := create(t, c, "")
	const size = 128 << 20
	a, err := sb.Exec(ctx, sh(fmt.Sprintf("head -c %d /dev/zero | tr '\\0' 'x'; echo end >&2", size)))
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(200 * time.Millisecond) // the reader is slow
	var seen uint64
	end, err := a.Copy(client.Stdio{Out: writerFunc(func(p []byte) { seen += uint64(len(p)) })})
	if err != nil || seen != size || end.StdoutBytes != size {
		t.Errorf("%d bytes of %d, %+v, %v", seen, size, end, err)
	}
	if kib := residentKiB(t, d.node.Process.Pid); kib > 200<<10 {
		t.Errorf("the node takes %d KiB", kib)
	}
}

type writerFunc func([]byte)

func (f writerFunc) Write(p []byte) (int, error) { f(p); return len(p), nil }

func residentKiB(t *testing.T, pid int) (kib int) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(b), "\n") {
		fmt.Sscanf(line, "VmHWM: %d kB", &kib)
	}
	return kib
}

func TestOldLogsAreForgotten(t *testing.T) {
	d, c := start(t)
	ctx := t.Context()
	sb := create(t, c, "")
	var ids []string
	for range 6 {
		se, err := sb.Start(ctx, sh("exec head -c 62000000 /dev/zero"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := se.Wait(ctx); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, se.ID)
	}
	eventually(t, "the oldest are forgotten", func() bool {
		all, err := sb.Sessions(ctx)
		return err == nil && len(all) < 6 && all[len(all)-1].ID == ids[5]
	})
	_, err := c.SessionHandle(ids[0]).Attach(ctx, client.AttachOptions{})
	wantKind(t, err, fault.NotFound)
	var room int64
	err = filepath.WalkDir(filepath.Join(d.dir, "sessions"), func(_ string, e os.DirEntry, err error) error {
		if i, ierr := e.Info(); ierr == nil && !e.IsDir() {
			room += i.Size()
		}
		return err
	})
	if err != nil || room > 300<<20 {
		t.Errorf("logs take %d bytes, %v", room, err)
	}
}
