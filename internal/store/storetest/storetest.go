// Package storetest is the conformance suite of stores.
package storetest

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/store"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// Run runs the suite. open opens the store in a directory, again if it was
// open there before and was closed.
func Run(t *testing.T, open func(t *testing.T, dir string) store.Store) {
	for name, test := range map[string]func(*testing.T, store.Store){
		"templates": templates, "sandboxes": sandboxes, "sessions": sessions, "in one transaction": together, "checkpoints": checkpoints, "one name, many at once": race,
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, t.TempDir())
			defer s.Close() //nolint:errcheck // nothing to lose
			test(t, s)
		})
	}
	t.Run("reopen", func(t *testing.T) {
		dir := t.TempDir()
		s := open(t, dir)
		want := someTemplate("a")
		must(t, s.AddTemplate(t.Context(), want))
		must(t, s.Close())
		s = open(t, dir)
		defer s.Close() //nolint:errcheck // nothing to lose
		equal(t, want)(s.Template(t.Context(), "a"))
	})
}

var now = time.Date(2026, 11, 29, 12, 0, 0, 123456789, time.UTC)

func someTemplate(name string) store.Template {
	return store.Template{
		ID: "tp-" + name, Name: name, ImageID: "im-1", Image: "img", Layers: []string{"sha256:1", "sha256:2"},
		Start: "python3 -m http.server", Env: map[string]string{"A": "ü='\"\n"}, User: "me", Dir: "/srv",
		Resources: control.Resources{MemoryBytes: 1 << 40, CPUs: 0.5, PIDs: 9, DiskBytes: 7}, Setuid: true, Reseed: true, Created: now,
		Ready: "curl -sf localhost", ReadyTimeout: 90 * time.Second,
	}
}

func someSandbox(id, name string) store.Sandbox {
	return store.Sandbox{
		ID: id, Name: name, Template: "tp-a", Hostname: "h", Env: map[string]string{"K": "V"},
		Resources: control.Resources{PIDs: 5}, State: store.Creating, Created: now, ForkedFrom: "cp-9", StartSession: "se-9", Golden: true,
	}
}

func templates(t *testing.T, s store.Store) {
	ctx := t.Context()
	a, b := someTemplate("a"), someTemplate("b")
	must(t, s.AddTemplate(ctx, b))
	must(t, s.AddTemplate(ctx, a))
	equal(t, a)(s.Template(ctx, "a"))
	equal(t, a)(s.Template(ctx, "tp-a"))
	equal(t, []store.Template{a, b})(s.Templates(ctx))
	again := someTemplate("a")
	again.ID = "tp-other"
	kind(t, fault.Exists, s.AddTemplate(ctx, again))
	_, err := s.Template(ctx, "none")
	kind(t, fault.NotFound, err)
	kind(t, fault.NotFound, s.RemoveTemplate(ctx, "none"))

	must(t, s.AddSandbox(ctx, someSandbox("sb-1", "")))
	kind(t, fault.Conflict, s.RemoveTemplate(ctx, "tp-a"))
	must(t, s.RemoveSandbox(ctx, "sb-1"))
	must(t, s.RemoveTemplate(ctx, "tp-a"))
	equal(t, []store.Template{b})(s.Templates(ctx))
}

func sandboxes(t *testing.T, s store.Store) {
	ctx := t.Context()
	kind(t, fault.NotFound, s.AddSandbox(ctx, someSandbox("sb-1", "")))
	must(t, s.AddTemplate(ctx, someTemplate("a")))
	x, y, z := someSandbox("sb-1", "x"), someSandbox("sb-2", ""), someSandbox("sb-3", "")
	y.Created = now.Add(-time.Hour)
	z.Created = now.Add(time.Hour)
	for _, v := range []store.Sandbox{x, y, z} {
		must(t, s.AddSandbox(ctx, v))
	}
	equal(t, x)(s.Sandbox(ctx, "x"))
	equal(t, y)(s.Sandbox(ctx, "sb-2"))
	equal(t, []store.Sandbox{y, x, z})(s.Sandboxes(ctx))
	kind(t, fault.Exists, s.AddSandbox(ctx, someSandbox("sb-4", "x")))
	kind(t, fault.Exists, s.AddSandbox(ctx, someSandbox("sb-1", "")))

	x.State, x.LostReason, x.Generation, x.At, x.Name = store.Lost, "killed", 7, "cp-1", "w"
	must(t, s.UpdateSandbox(ctx, x))
	equal(t, x)(s.Sandbox(ctx, "w"))
	_, err := s.Sandbox(ctx, "x")
	kind(t, fault.NotFound, err)
	y.Name = "w"
	kind(t, fault.Exists, s.UpdateSandbox(ctx, y))
	kind(t, fault.NotFound, s.UpdateSandbox(ctx, someSandbox("sb-9", "")))

	// A name that looks like another's id does not hide it.
	must(t, s.AddSandbox(ctx, someSandbox("sb-5", "sb-1")))
	equal(t, x)(s.Sandbox(ctx, "sb-1"))

	must(t, s.RemoveSandbox(ctx, "sb-1"))
	kind(t, fault.NotFound, s.RemoveSandbox(ctx, "sb-1"))
}

func sessions(t *testing.T, s store.Store) {
	ctx := t.Context()
	must(t, s.AddTemplate(ctx, someTemplate("a")))
	must(t, s.AddSandbox(ctx, someSandbox("sb-1", "")))
	must(t, s.AddSandbox(ctx, someSandbox("sb-2", "")))
	one := store.Session{
		ID: "se-1", Sandbox: "sb-1", Key: "k", Argv: []string{"sh", "-c", "echo \x01"}, TTY: true, PID: 7, Started: now,
		Deadline: now.Add(time.Minute), Marks: []store.Mark{{}},
	}
	two := store.Session{ID: "se-2", Sandbox: "sb-2", Key: "k", Argv: []string{"true"}, Started: now.Add(time.Second)}
	must(t, s.AddSession(ctx, one))
	must(t, s.AddSession(ctx, two))
	equal(t, one)(s.Session(ctx, "se-1"))
	equal(t, []store.Session{one, two})(s.Sessions(ctx, ""))
	equal(t, []store.Session{two})(s.Sessions(ctx, "sb-2"))
	same := two
	same.ID = "se-3"
	kind(t, fault.Exists, s.AddSession(ctx, same))
	lost := two
	lost.ID, lost.Sandbox = "se-4", "sb-9"
	kind(t, fault.NotFound, s.AddSession(ctx, lost))

	one.Ended, one.EndedAt, one.ExitCode, one.Reason, one.Generation = true, now.Add(time.Hour), 137, "oom", 3
	one.Marks = append(one.Marks, store.Mark{Generation: 3, Checkpoint: "cp-1", Stdout: 1 << 40, Stderr: 2})
	must(t, s.UpdateSession(ctx, one))
	equal(t, one)(s.Session(ctx, "se-1"))
	must(t, s.RemoveSession(ctx, "se-1"))
	_, err := s.Session(ctx, "se-1")
	kind(t, fault.NotFound, err)
	kind(t, fault.NotFound, s.UpdateSession(ctx, one))

	// A body: the sandbox's record and its sessions' at once, or nothing.
	box, err := s.Sandbox(ctx, "sb-2")
	must(t, err)
	box.Generation, box.At = 9, "cp-9"
	two.Generation, two.PID = 9, 99
	gone := two
	gone.ID = "se-9"
	must(t, s.UpdateBody(ctx, box, []store.Session{gone, two}))
	equal(t, box)(s.Sandbox(ctx, "sb-2"))
	equal(t, []store.Session{two})(s.Sessions(ctx, "sb-2"))
	elsewhere, other := box, two
	elsewhere.ID, other.PID = "sb-9", 100
	kind(t, fault.NotFound, s.UpdateBody(ctx, elsewhere, []store.Session{other}))
	equal(t, []store.Session{two})(s.Sessions(ctx, "sb-2"))

	must(t, s.RemoveSandbox(ctx, "sb-2"))
	equal(t, []store.Session(nil))(s.Sessions(ctx, ""))
}

// together: what is done in one transaction is done whole or not at all.
func together(t *testing.T, s store.Store) {
	ctx := t.Context()
	must(t, s.AddTemplate(ctx, someTemplate("a")))
	one, two := someSandbox("sb-1", "one"), someSandbox("sb-2", "two")
	must(t, s.AddSandboxes(ctx, []store.Sandbox{one, two}))
	three, orphan := someSandbox("sb-3", "three"), someSandbox("sb-4", "")
	kind(t, fault.Exists, s.AddSandboxes(ctx, []store.Sandbox{three, someSandbox("sb-5", "two")}))
	orphan.Template = "tp-none"
	kind(t, fault.NotFound, s.AddSandboxes(ctx, []store.Sandbox{three, orphan}))
	must(t, s.AddSandboxes(ctx, nil))
	equal(t, []store.Sandbox{one, two})(s.Sandboxes(ctx))

	session := func(id, sandbox string) store.Session {
		return store.Session{ID: id, Sandbox: sandbox, Key: "k-" + id, Argv: []string{"sh"}, PID: 7, Started: now, Generation: 2}
	}
	a, b := session("se-1", "sb-1"), session("se-2", "sb-2")
	equal(t, []store.Session(nil))(s.Sessions(ctx, "sb-1")) // what is known of it is to change
	was := two
	one.State, two.State, two.Generation = store.Running, store.Running, 4
	kind(t, fault.NotFound, s.UpdateSandboxes(ctx, []store.Sandbox{one, two}, []store.Session{a, session("se-9", "sb-9")}))
	kind(t, fault.NotFound, s.UpdateSandboxes(ctx, []store.Sandbox{two, someSandbox("sb-9", "")}, nil))
	equal(t, was)(s.Sandbox(ctx, "two"))
	equal(t, []store.Session(nil))(s.Sessions(ctx, "sb-1"))
	must(t, s.UpdateSandboxes(ctx, []store.Sandbox{one, two}, []store.Session{a, b}))
	equal(t, []store.Sandbox{one, two})(s.Sandboxes(ctx))
	equal(t, []store.Session{a})(s.Sessions(ctx, "sb-1"))
	equal(t, []store.Session{a, b})(s.Sessions(ctx, ""))
	kind(t, fault.Exists, s.UpdateSandboxes(ctx, nil, []store.Session{a}))
}

func checkpoints(t *testing.T, s store.Store) {
	ctx := t.Context()
	must(t, s.AddTemplate(ctx, someTemplate("a")))
	must(t, s.AddSandbox(ctx, someSandbox("sb-1", "")))
	must(t, s.AddSandbox(ctx, someSandbox("sb-2", "")))
	a := store.Checkpoint{ID: "cp-1", Sandbox: "sb-1", Name: "a", Created: now}
	b := store.Checkpoint{ID: "cp-2", Sandbox: "sb-2", Name: "a", Created: now.Add(1)}
	c := store.Checkpoint{ID: "cp-3", Sandbox: "sb-1", Created: now.Add(2)}
	d := store.Checkpoint{ID: "cp-4", Sandbox: "sb-1", Created: now.Add(3)}
	for _, v := range []store.Checkpoint{a, b, c, d} {
		must(t, s.AddCheckpoint(ctx, v))
	}
	equal(t, c)(s.Checkpoint(ctx, "cp-3"))
	equal(t, []store.Checkpoint{a, b})(s.CheckpointsNamed(ctx, "", "a"))
	equal(t, []store.Checkpoint{b})(s.CheckpointsNamed(ctx, "sb-2", "a"))
	equal(t, []store.Checkpoint{a, c, d})(s.Checkpoints(ctx, "sb-1"))
	kind(t, fault.Exists, s.AddCheckpoint(ctx, store.Checkpoint{ID: "cp-5", Sandbox: "sb-1", Name: "a"}))
	kind(t, fault.NotFound, s.AddCheckpoint(ctx, store.Checkpoint{ID: "cp-5", Sandbox: "sb-9"}))
	must(t, s.RemoveCheckpoint(ctx, "cp-1"))
	kind(t, fault.NotFound, s.RemoveCheckpoint(ctx, "cp-1"))
	must(t, s.AddCheckpoint(ctx, store.Checkpoint{ID: "cp-5", Sandbox: "sb-1", Name: "a"}))
	must(t, s.RemoveSandbox(ctx, "sb-1"))
	equal(t, []store.Checkpoint(nil))(s.Checkpoints(ctx, "sb-1"))
	_, err := s.Checkpoint(ctx, "cp-3")
	kind(t, fault.NotFound, err)
}

// race: of many that take one name, one gets it.
func race(t *testing.T, s store.Store) {
	ctx := t.Context()
	must(t, s.AddTemplate(ctx, someTemplate("a")))
	var wg sync.WaitGroup
	var got atomic.Int32
	for i := range 16 {
		wg.Go(func() {
			err := s.AddSandbox(context.WithoutCancel(ctx), someSandbox(fmt.Sprintf("sb-%d", i), "one"))
			if err == nil {
				got.Add(1)
			} else if !fault.Is(err, fault.Exists) {
				t.Errorf("AddSandbox: %v", err)
			}
		})
	}
	wg.Wait()
	if got.Load() != 1 {
		t.Errorf("%d sandboxes got one name", got.Load())
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func kind(t *testing.T, want fault.Kind, err error) {
	t.Helper()
	if !fault.Is(err, want) {
		t.Fatalf("the error is %v (kind %q), want kind %q", err, fault.KindOf(err), want)
	}
}

func equal[T any](t *testing.T, want T) func(T, error) {
	t.Helper()
	return func(got T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("got  %+v\nwant %+v", got, want)
		}
	}
}
