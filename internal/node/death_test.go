package node_test

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/fault"
)

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
