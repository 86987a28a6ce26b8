package node_test

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

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
