package node_test

import (
	"testing"

	"github.com/sandtree/sandtree/client"
)

// An attachment that is closed while nothing comes ends at once, on both sides.
func TestCloseEndsAQuietAttachment(t *testing.T) {
	_, c := start(t)
	ctx := t.Context()
	sb, err := c.CreateSandbox(ctx, client.SandboxConfig{})
	if err != nil {
		t.Fatal(err)
	}
	a, err := sb.Exec(ctx, client.Command{Argv: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() {
		_, err := a.Next()
		ended <- err
	}()
	a.Close()
	wantKind(t, <-ended, "canceled")
	eventually(t, "nobody is attached", func() bool {
		all, err := sb.Sessions(ctx)
		return err == nil && len(all) == 1 && all[0].Attached == 0
	})
	if err := sb.Remove(ctx, true); err != nil {
		t.Fatal(err)
	}
}
