package node_test

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/fault"
)

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
	for i, k := range f.Sandboxes {
		all, err := k.Sessions(ctx)
		if err != nil || len(all) != 1 || ids[all[0].ID] || k.ForkedFrom != cp.ID {
			t.Fatalf("sessions of a copy: %v, %v", all, err)
		}
		if len(f.Sessions[i]) != 1 {
			t.Fatalf("the fork told of %d sessions of a copy", len(f.Sessions[i]))
		}
		now := all[0].SessionInfo
		now.StdoutBytes = f.Sessions[i][0].StdoutBytes // it goes on
		if !reflect.DeepEqual(f.Sessions[i][0].SessionInfo, now) {
			t.Errorf("the fork told of session %+v, not %+v", f.Sessions[i][0].SessionInfo, now)
		}
		all = f.Sessions[i]
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
