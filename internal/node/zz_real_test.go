package node_test

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandtree/sandtree/client"
)

func TestReal(t *testing.T) {
	c, err := client.Dial(os.Getenv("SOCK"))
	if err != nil {
		t.Skip(err)
	}
	ctx := t.Context()
	var wg sync.WaitGroup
	var mu sync.Mutex
	times := map[string][]time.Duration{}
	timed := func(k string, f func() error) {
		b := time.Now()
		err := f()
		if err != nil {
			t.Errorf("%s: %v", k, err)
		}
		mu.Lock()
		times[k] = append(times[k], time.Since(b))
		mu.Unlock()
	}
	for w := range 8 {
		wg.Go(func() {
			for i := range 6 {
				var sb *client.Sandbox
				timed("create", func() (err error) { sb, err = c.CreateSandbox(ctx, client.SandboxConfig{}); return })
				if sb == nil {
					return
				}
				var out bytes.Buffer
				timed("exec", func() error {
					_, err := sb.Run(ctx, client.Command{Argv: []string{"cat"}}, client.Stdio{In: strings.NewReader(fmt.Sprint(w, i)), Out: &out})
					return err
				})
				if out.String() != fmt.Sprint(w, i) {
					t.Errorf("exec: %q", out.String())
				}
				a, err := sb.Exec(ctx, client.Command{Argv: []string{"bash"}, TTY: true, Env: map[string]string{"PS1": "$ "}})
				if err != nil {
					t.Error(err)
					return
				}
				expect := func(want string) {
					seen := ""
					for !strings.Contains(seen, want) {
						e, err := a.Next()
						if err != nil {
							t.Errorf("want %q: %v, seen %q", want, err, seen)
							return
						}
						if o, ok := e.(client.Output); ok {
							seen += string(o.Data)
						}
						if _, ok := e.(client.End); ok {
							t.Errorf("want %q: end; seen %q", want, seen)
							return
						}
					}
				}
				fmt.Fprintf(a, "x=%d; echo v$x.\n", i)
				expect(fmt.Sprintf("v%d.", i))
				var cp *client.Checkpoint
				timed("checkpoint", func() (err error) { cp, err = sb.Checkpoint(ctx, "one"); return })
				if cp == nil {
					return
				}
				fmt.Fprintf(a, "x=other; echo v$x.\n")
				expect("vother.")
				timed("rollback", func() error { _, err := sb.Rollback(ctx, "one"); return err })
				fmt.Fprintf(a, "echo w$x.\n")
				expect(fmt.Sprintf("w%d.", i))
				var f client.ForkResult
				timed("fork2", func() (err error) { f, err = cp.Fork(ctx, 2); return })
				for _, k := range f.Sandboxes {
					ss, err := k.Sessions(ctx)
					if err != nil || len(ss) != 1 {
						t.Errorf("fork sessions: %v %v", ss, err)
						continue
					}
					old := a
					if a, err = ss[0].Attach(ctx, client.AttachOptions{}); err != nil {
						t.Error(err)
						continue
					}
					fmt.Fprintf(a, "echo f$x.\n")
					expect(fmt.Sprintf("f%d.", i))
					a.Close()
					a = old
					timed("rm", func() error { return k.Remove(ctx, true) })
				}
				timed("rm", func() error { return sb.Remove(ctx, true) })
				a.Close()
			}
		})
	}
	wg.Wait()
	for k, v := range times {
		var sum, max time.Duration
		for _, d := range v {
			sum += d
			if d > max {
				max = d
			}
		}
		t.Logf("%s: %d, mean %s, max %s", k, len(v), sum/time.Duration(len(v)), max)
	}
}
