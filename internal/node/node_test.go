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
	"sync"
	"testing"
	"time"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/fault"
)

func create(t *testing.T, c *client.Client, name string) *client.Sandbox {
	t.Helper()
	sb, err := c.CreateSandbox(t.Context(), client.SandboxConfig{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

func sh(script string) client.Command { return client.Command{Argv: []string{"/bin/sh", "-c", script}} }

// run runs a script to its end.
func run(t *testing.T, sb *client.Sandbox, script, in string) (out, stderr string, end client.SessionInfo) {
	t.Helper()
	var o, e bytes.Buffer
	io := client.Stdio{Out: &o, Err: &e}
	if in != "" {
		io.In = strings.NewReader(in)
	}
	end, err := sb.Run(t.Context(), sh(script), io)
	if err != nil {
		t.Fatalf("run %q: %v", script, err)
	}
	return o.String(), e.String(), end
}

func TestLifecycle(t *testing.T) {
	_, c := start(t)
	ctx := t.Context()
	sb := create(t, c, "one")
	if sb.Template != "debian" || sb.State != client.Running || sb.Hostname != "one" || !strings.HasPrefix(sb.ID, "sb-") {
		t.Errorf("created %+v", sb.SandboxInfo)
	}
	_, err := c.CreateSandbox(ctx, client.SandboxConfig{Name: "one"})
	wantKind(t, err, fault.Exists)
	_, err = c.CreateSandbox(ctx, client.SandboxConfig{Template: "none"})
	wantKind(t, err, fault.NotFound)
	if client.HintOf(err) == "" {
		t.Error("an unknown template comes without a hint")
	}
	for _, cfg := range []client.SandboxConfig{
		{Name: "no spaces"}, {Name: sb.ID}, {Hostname: "-"}, {Env: map[string]string{"": "x"}},
		{Resources: client.Resources{MemoryBytes: 1}}, {Resources: client.Resources{CPUs: -1}},
	} {
		_, err = c.CreateSandbox(ctx, cfg)
		wantKind(t, err, fault.Invalid)
	}
	two := create(t, c, "")
	all, err := c.Sandboxes(ctx)
	if err != nil || len(all) != 2 || all[0].ID != sb.ID || all[1].ID != two.ID {
		t.Errorf("list: %v, %v", all, err)
	}
	if got, err := c.Sandbox(ctx, "one"); err != nil || got.ID != sb.ID {
		t.Errorf("by name: %v, %v", got, err)
	}
	se, err := sb.Start(ctx, sh("sleep 1000"))
	if err != nil {
		t.Fatal(err)
	}
	wantKind(t, sb.Remove(ctx, false), fault.Conflict)
	wantKind(t, c.RemoveTemplate(ctx, "debian", false), fault.Conflict)
	i, err := c.Info(ctx)
	if err != nil || i.Running != 2 || i.Sessions != 1 || len(i.Families) != 1 || i.Families[0].Template != "debian" {
		t.Errorf("info %+v, %v", i, err)
	}
	st, err := sb.Stats(ctx)
	if err != nil || st.PIDs != 1 {
		t.Errorf("stats %+v, %v", st, err)
	}
	// Who is attached sees the end.
	a, err := se.Attach(ctx, client.AttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := sb.Remove(ctx, true); err != nil {
		t.Fatal(err)
	}
	if end, err := a.Copy(client.Stdio{}); err != nil || end.Reason != "sandbox ended" {
		t.Errorf("attached to a removed sandbox: %+v, %v", end, err)
	}
	wantKind(t, sb.Remove(ctx, true), fault.NotFound)
	_, err = sb.Start(ctx, sh("true"))
	wantKind(t, err, fault.NotFound)
	if err := c.RemoveTemplate(ctx, "debian", true); err != nil {
		t.Fatal(err)
	}
	if all, err := c.Sandboxes(ctx); err != nil || len(all) != 0 {
		t.Errorf("list: %v, %v", all, err)
	}
}

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

func TestRollbackAndFork(t *testing.T) {
	_, c := start(t)
	ctx := t.Context()
	sb := create(t, c, "origin")
	old, err := sb.Exec(ctx, sh("echo hello; exec cat"))
	if err != nil {
		t.Fatal(err)
	}
	next := func() client.Event {
		t.Helper()
		e, err := old.Next()
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	if o, ok := next().(client.Output); !ok || string(o.Data) != "hello\n" {
		t.Fatalf("%v", o)
	}
	cp, err := sb.Checkpoint(ctx, "clean")
	if err != nil {
		t.Fatal(err)
	}
	_, err = sb.Checkpoint(ctx, "clean")
	wantKind(t, err, fault.Exists)
	later, err := sb.Exec(ctx, sh("exec cat"))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(old, "typed\n")
	if o, ok := next().(client.Output); !ok || string(o.Data) != "typed\n" || o.Generation != 0 {
		t.Fatalf("%+v", o)
	}
	r, err := sb.Rollback(ctx, "clean")
	if err != nil || r.Generation != 1 || r.At != cp.ID || r.Checkpoint != cp.ID {
		t.Fatalf("rollback: %+v, %v", r, err)
	}
	if m, ok := next().(client.Rebirth); !ok || m.Generation != 1 || m.Checkpoint != cp.ID || m.From.Stdout != 12 {
		t.Fatalf("no mark but %+v", m)
	}
	if o, ok := next().(client.Output); !ok || string(o.Data) != "hello\n" || o.Generation != 1 || o.Offset != 12 {
		t.Fatalf("%+v", o)
	}
	fmt.Fprint(old, "more\n")
	if o, ok := next().(client.Output); !ok || string(o.Data) != "more\n" {
		t.Fatalf("%+v", o)
	}
	if end, err := later.Copy(client.Stdio{}); err != nil || end.Reason != "rolled back" {
		t.Errorf("a later session: %+v, %v", end, err)
	}

	// A session that ended after the checkpoint runs again after a rollback.
	old.CloseStdin()
	for {
		if e, ok := next().(client.End); ok {
			if e.Session.ExitCode != 0 {
				t.Errorf("%+v", e)
			}
			break
		}
	}
	if _, err := sb.Rollback(ctx, cp.ID); err != nil {
		t.Fatal(err)
	}
	all, err := sb.Sessions(ctx)
	if err != nil || len(all) != 2 || all[0].Ended || all[0].ID != old.Session.ID || all[0].Generation != 2 {
		t.Errorf("sessions after the second rollback: %+v, %v", all, err)
	}

	// Copies have sessions and logs of their own.
	f, err := c.Fork(ctx, "origin/clean", 3, "a", "b", "c")
	if err != nil || len(f.Sandboxes) != 3 || f.Checkpoint.ID != cp.ID {
		t.Fatalf("fork: %+v, %v", f, err)
	}
	ids := map[string]bool{old.Session.ID: true}
	for _, k := range f.Sandboxes {
		all, err := k.Sessions(ctx)
		if err != nil || len(all) != 1 || ids[all[0].ID] || k.ForkedFrom != cp.ID {
			t.Fatalf("sessions of a copy: %v, %v", all, err)
		}
		ids[all[0].ID] = true
		a, err := all[0].Attach(ctx, client.AttachOptions{From: &client.Position{}})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(a, "I am %s\n", k.Name)
		a.CloseStdin()
		var out bytes.Buffer
		if _, err := a.Copy(client.Stdio{Out: &out}); err != nil || out.String() != "hello\nI am "+k.Name+"\n" {
			t.Errorf("a copy's output %q, %v", out.String(), err)
		}
	}
	_, err = f.Sandboxes[0].Rollback(ctx, "clean")
	wantKind(t, err, fault.Invalid)
	if err == nil || !strings.Contains(err.Error(), "origin") {
		t.Errorf("%v does not say whose checkpoint it is", err)
	}
	_, err = c.Fork(ctx, "nothing", 1)
	wantKind(t, err, fault.NotFound)
	_, err = c.Fork(ctx, "clean", 1, "origin")
	wantKind(t, err, fault.Exists)
	live, err := sb.Fork(ctx, 1)
	if err != nil || live.Checkpoint.ID == cp.ID {
		t.Errorf("fork of the live state: %+v, %v", live, err)
	}
	tree, err := sb.Tree(ctx)
	if err != nil || len(tree.Checkpoints) != 2 || tree.At != live.Checkpoint.ID || tree.Checkpoints[0].Name != "clean" {
		t.Errorf("tree: %+v, %v", tree, err)
	}
	ch, err := c.Diff(ctx, "origin", "clean", "")
	if err != nil || len(ch) != 1 || ch[0].Kind != "D" || ch[0].Path != "/"+cp.ID+".." {
		t.Errorf("diff from the live state: %+v, %v", ch, err)
	}
	_, err = c.Diff(ctx, "a", "clean", "")
	wantKind(t, err, fault.Invalid)
	if err := sb.RemoveCheckpoint(ctx, "clean"); err != nil {
		t.Fatal(err)
	}
	_, err = sb.Rollback(ctx, "clean")
	wantKind(t, err, fault.NotFound)
	run(t, sb, "touch uncapturable", "")
	_, err = sb.Checkpoint(ctx, "bad")
	wantKind(t, err, fault.Uncapturable)
	run(t, sb, "rm uncapturable", "")
	if _, err = sb.Checkpoint(ctx, "bad"); err != nil {
		t.Errorf("a failed checkpoint keeps its name: %v", err)
	}
}

func TestKilledNodeLosesNothing(t *testing.T) {
	d, c := start(t)
	ctx := t.Context()
	sb := create(t, c, "s")
	const lines = 60000
	se, err := sb.Start(ctx, sh(fmt.Sprintf("seq -f 'line %%.0f' %d; sleep 0.3; echo last; exit 3", lines)))
	if err != nil {
		t.Fatal(err)
	}
	tty, err := sb.Start(ctx, client.Command{Argv: []string{"/bin/sh"}, TTY: true})
	if err != nil {
		t.Fatal(err)
	}
	cp, err := sb.Checkpoint(ctx, "here")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		d.killNode()
		d.startNode()
	}
	var out bytes.Buffer
	a, err := c.SessionHandle(se.ID).Attach(ctx, client.AttachOptions{From: &client.Position{}})
	if err != nil {
		t.Fatal(err)
	}
	end, err := a.Copy(client.Stdio{Out: &out})
	if err != nil || end.ExitCode != 3 {
		t.Fatalf("after kills: %+v, %v", end, err)
	}
	all := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(all) != lines+1 || all[0] != "line 1" || all[lines-1] != fmt.Sprintf("line %d", lines) || all[lines] != "last" {
		t.Errorf("%d lines, the last %q", len(all), all[len(all)-1])
	}
	b, err := c.SessionHandle(tty.ID).Attach(ctx, client.AttachOptions{})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(b, "exit 4\n")
	if end, err := b.Copy(client.Stdio{}); err != nil || end.ExitCode != 4 {
		t.Errorf("terminal after kills: %+v, %v", end, err)
	}
	got, err := c.Sandbox(ctx, "s")
	if err != nil || got.At != cp.ID || got.State != client.Running {
		t.Errorf("%+v, %v", got, err)
	}
	// A session that ends while no node runs.
	late, err := sb.Start(ctx, sh("sleep 0.2; echo gone; exit 5"))
	if err != nil {
		t.Fatal(err)
	}
	d.killNode()
	time.Sleep(400 * time.Millisecond)
	d.startNode()
	out.Reset()
	a, err = late.Attach(ctx, client.AttachOptions{From: &client.Position{}})
	if err != nil {
		t.Fatal(err)
	}
	if end, err := a.Copy(client.Stdio{Out: &out}); err != nil || end.ExitCode != 5 || out.String() != "gone\n" {
		t.Errorf("ended without a node: %+v, %v, %q", end, err, out.String())
	}
}

func TestKilledSupervisorLosesItsSandboxesAlone(t *testing.T) {
	d, c := start(t)
	ctx := t.Context()
	sb := create(t, c, "doomed")
	a, err := sb.Exec(ctx, sh("echo up; exec sleep 1000"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Next(); err != nil {
		t.Fatal(err)
	}
	d.mu.Lock()
	f := d.families["tp-debian"]
	d.mu.Unlock()
	pool, err := os.ReadDir(d.dir + "/pool")
	if err != nil || len(pool) != 1 {
		t.Fatal(pool, err)
	}
	f.cmd.Process.Kill()
	end, err := a.Copy(client.Stdio{})
	if err != nil || end.Reason != "lost" {
		t.Errorf("%+v, %v", end, err)
	}
	os.RemoveAll(d.dir + "/pool/" + pool[0].Name())
	got, err := c.Sandbox(ctx, "doomed")
	if err != nil || got.State != client.LostState || got.LostReason == "" {
		t.Errorf("%+v, %v", got, err)
	}
	_, err = sb.Start(ctx, sh("true"))
	wantKind(t, err, fault.Lost)
	_, err = sb.Checkpoint(ctx, "")
	wantKind(t, err, fault.Lost)
	if w, err := sb.Wait(ctx, ""); err != nil || w.State != client.LostState {
		t.Errorf("wait: %+v, %v", w, err)
	}
	// The family starts anew.
	next := create(t, c, "next")
	if out, _, end := run(t, next, "echo fine", ""); out != "fine\n" {
		t.Errorf("%q, %+v", out, end)
	}
	d.killNode()
	d.startNode()
	if got, err := c.Sandbox(ctx, "doomed"); err != nil || got.State != client.LostState {
		t.Errorf("after a restart: %+v, %v", got, err)
	}
	if err := sb.Remove(ctx, false); err != nil {
		t.Error(err)
	}
	if out, _, end := run(t, next, "echo fine", ""); out != "fine\n" {
		t.Errorf("%q, %+v", out, end)
	}
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

func TestManyAtOnce(t *testing.T) {
	d, c := start(t)
	ctx := t.Context()
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for range 4 {
				sb, err := c.CreateSandbox(ctx, client.SandboxConfig{})
				if err != nil {
					t.Error(err)
					return
				}
				var out bytes.Buffer
				if _, err := sb.Run(ctx, sh("cat; echo $PPID >&2"), client.Stdio{In: strings.NewReader(fmt.Sprint(w)), Out: &out}); err != nil || out.String() != fmt.Sprint(w) {
					t.Errorf("%q, %v", out.String(), err)
				}
				cp, err := sb.Checkpoint(ctx, "x")
				if err != nil {
					t.Error(err)
					return
				}
				f, err := cp.Fork(ctx, 2)
				if err != nil {
					t.Error(err)
					return
				}
				for _, k := range append(f.Sandboxes, sb) {
					if err := k.Remove(ctx, true); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	if left, err := os.ReadDir(d.dir + "/sessions"); err != nil || len(left) > 0 {
		t.Errorf("logs are left: %v, %v", left, err)
	}
	eventually(t, "no descriptor is left", func() bool {
		fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", d.node.Process.Pid))
		return err == nil && len(fds) < 24
	})
}
