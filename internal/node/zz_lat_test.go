package node_test

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/sandtree/sandtree/client"
)

func TestLat(t *testing.T) {
	c, err := client.Dial(os.Getenv("SOCK"))
	if err != nil {
		t.Skip(err)
	}
	ctx := t.Context()
	sb, err := c.CreateSandbox(ctx, client.SandboxConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Remove(ctx, true)
	sb.Start(ctx, client.Command{Argv: []string{"sleep", "1000"}})
	cp, err := sb.Checkpoint(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	p := func(k string, n int, f func() time.Duration) {
		var ds, in []time.Duration
		for range n {
			b := time.Now()
			e := f()
			ds = append(ds, time.Since(b))
			in = append(in, e)
		}
		slices.Sort(ds)
		slices.Sort(in)
		t.Logf("%s p50 %s p95 %s; inner p50 %s", k, ds[n/2], ds[n*95/100], in[n/2])
	}
	p("info", 200, func() time.Duration { c.Info(ctx); return 0 })
	p("stat", 200, func() time.Duration { sb.Stat(ctx, "/etc/passwd", false); return 0 })
	p("exec", 200, func() time.Duration {
		sb.Run(ctx, client.Command{Argv: []string{"/bin/true"}}, client.Stdio{})
		return 0
	})
	p("rollback", 50, func() time.Duration {
		r, err := sb.Rollback(ctx, cp.ID)
		if err != nil {
			t.Error(err)
		}
		return time.Duration(r.ElapsedNS)
	})
	p("create", 30, func() time.Duration {
		sb, err := c.CreateSandbox(ctx, client.SandboxConfig{})
		if err == nil {
			go sb.Remove(ctx, true)
		}
		return 0
	})
}
