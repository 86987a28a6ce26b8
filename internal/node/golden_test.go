package node_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/fault"
)

// startTemplate makes a template called warm with a start command. The engine of
// these tests copies files, and runs the command again in each copy.
func startTemplate(t *testing.T, c *client.Client, start, ready string) (client.Template, error) {
	t.Helper()
	if _, err := c.ImportImage(t.Context(), client.ImportConfig{Name: "tiny"}, bytes.NewReader(rootTar(t))); err != nil {
		t.Fatal(err)
	}
	return c.CreateTemplate(t.Context(), client.TemplateConfig{Name: "warm", Image: "tiny", Start: start, Ready: ready})
}

func (d *daemon) killSupervisor(t *testing.T, family string) {
	t.Helper()
	d.mu.Lock()
	f := d.families[family]
	d.mu.Unlock()
	if f == nil {
		t.Fatalf("no family %s", family)
	}
	if err := syscall.Kill(f.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitGone(f.PID)
	dirs, err := filepath.Glob(filepath.Join(d.dir, "pool", family+"-*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs { // as a host does
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
}

func createWarm(t *testing.T, c *client.Client) {
	t.Helper()
	if _, err := c.CreateSandbox(t.Context(), client.SandboxConfig{Template: "warm"}); err != nil {
		t.Fatal(err)
	}
}

func goldenState(t *testing.T, c *client.Client) client.GoldenState {
	t.Helper()
	tp, err := c.Template(t.Context(), "warm")
	if err != nil || tp.Golden == nil {
		t.Fatalf("%+v, %v", tp, err)
	}
	return tp.Golden.State
}

func TestGoldenCheckpointOutlivesTheNode(t *testing.T) {
	d, c := start(t)
	ctx := t.Context()
	tp, err := startTemplate(t, c, "echo started; touch up; exec sleep 1000", "test -e up")
	if err != nil || tp.Golden == nil || tp.Golden.State != client.GoldenReady {
		t.Fatalf("%+v, %v", tp, err)
	}
	d.killNode()
	d.startNode()
	if s := goldenState(t, c); s != client.GoldenReady {
		t.Errorf("after the node's death it is %s", s)
	}
	createWarm(t, c)
	all, err := c.Sandboxes(ctx)
	if err != nil || len(all) != 1 || all[0].StartSession == "" {
		t.Errorf("sandboxes %+v, %v", all, err)
	}
	if i, err := c.Info(ctx); err != nil || i.Running != 1 || i.Sessions != 1 {
		t.Errorf("%+v, %v", i, err)
	}
	if trees, err := c.Trees(ctx); err != nil || len(trees) != 1 {
		t.Errorf("%d trees, %v", len(trees), err)
	}
	if err := c.RemoveTemplate(ctx, "warm", true); err != nil {
		t.Fatal(err)
	}
}

// After the supervisor's death the golden checkpoint is made again, once for
// all who wait for it.
func TestGoldenCheckpointIsMadeAgain(t *testing.T) {
	d, c := start(t)
	ctx := t.Context()
	made := filepath.Join(t.TempDir(), "made")
	tp, err := startTemplate(t, c, fmt.Sprintf("test -e up || echo made >> %s; touch up; exec sleep 1000", made), "test -e up")
	if err != nil {
		t.Fatal(err)
	}
	d.killSupervisor(t, tp.ID)
	eventually(t, "a missing golden checkpoint", func() bool { return goldenState(t, c) == client.GoldenMissing })
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := c.CreateSandbox(ctx, client.SandboxConfig{Template: "warm"}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if b, _ := os.ReadFile(made); string(b) != "made\nmade\n" {
		t.Errorf("it was made as %q", b)
	}
	if s := goldenState(t, c); s != client.GoldenReady {
		t.Errorf("it is %s", s)
	}
	if err := c.RemoveTemplate(ctx, "warm", true); err != nil {
		t.Fatal(err)
	}
}

// One that fails is told to all who wait for it, and tried again for the next.
func TestGoldenCheckpointThatFails(t *testing.T) {
	d, c := start(t)
	ctx := t.Context()
	fail := filepath.Join(t.TempDir(), "fail")
	tp, err := startTemplate(t, c, fmt.Sprintf("! test -e %s || { echo the disk is on fire; exit 3; }; touch up; exec sleep 1000", fail), "test -e up")
	if err != nil {
		t.Fatal(err)
	}
	d.killSupervisor(t, tp.ID)
	eventually(t, "a missing golden checkpoint", func() bool { return goldenState(t, c) == client.GoldenMissing })
	if err := os.WriteFile(fail, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = c.CreateSandbox(ctx, client.SandboxConfig{Template: "warm"})
	wantKind(t, err, fault.Invalid)
	if err == nil || !strings.Contains(err.Error(), "ended with status 3\nthe end of its output:\n  the disk is on fire") {
		t.Errorf("the error is %v", err)
	}
	if all, err := c.Sandboxes(ctx); err != nil || len(all) != 0 {
		t.Errorf("left: %+v, %v", all, err)
	}
	if err := os.Remove(fail); err != nil {
		t.Fatal(err)
	}
	createWarm(t, c)
	if err := c.RemoveTemplate(ctx, "warm", true); err != nil {
		t.Fatal(err)
	}
}

// A node that dies while it makes one leaves nothing of it.
func TestNodeDiesWhileAGoldenCheckpointIsMade(t *testing.T) {
	d, c := start(t)
	ctx := t.Context()
	began := filepath.Join(t.TempDir(), "began")
	done := make(chan error, 1)
	go func() {
		_, err := startTemplate(t, c, "touch "+began+"; exec sleep 1000", "false")
		done <- err
	}()
	eventually(t, "a start", func() bool { _, err := os.Stat(began); return err == nil })
	if s := goldenState(t, c); s != client.GoldenMaking {
		t.Errorf("it is %s", s)
	}
	d.killNode()
	d.startNode()
	if err := <-done; err == nil {
		t.Error("the template was made")
	}
	if s := goldenState(t, c); s != client.GoldenMissing {
		t.Errorf("it is %s", s)
	}
	if i, err := c.Info(ctx); err != nil || i.Running != 0 || i.Sessions != 0 {
		t.Errorf("%+v, %v", i, err)
	}
	// Removal does not wait until one that is being made is ready.
	failed := make(chan error, 1)
	go func() {
		_, err := c.CreateSandbox(ctx, client.SandboxConfig{Template: "warm"})
		failed <- err
	}()
	eventually(t, "the making", func() bool { return goldenState(t, c) == client.GoldenMaking })
	if err := c.RemoveTemplate(ctx, "warm", true); err != nil {
		t.Error(err)
	}
	if err := <-failed; err == nil {
		t.Error("a sandbox of the removed template was made")
	}
}
