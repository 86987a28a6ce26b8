package node_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/sandtree/sandtree/client"
)

// A node that dies between a sandbox's record and its logs leaves the logs;
// the next one deletes them, and no others.
func TestLogsOfRemovedSandboxesAreSwept(t *testing.T) {
	d, c := start(t)
	ctx := t.Context()
	sb, err := c.CreateSandbox(ctx, client.SandboxConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sb.Run(ctx, client.Command{Argv: []string{"echo", "kept"}}, client.Stdio{}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(d.dir, "sessions", sb.ID)); err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(d.dir, "sessions", "sb-gone")
	if err := os.Mkdir(left, 0o700); err != nil {
		t.Fatal(err)
	}
	d.killNode()
	d.startNode()
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the logs of a removed sandbox are there: %v", err)
	}
	if _, err := os.Stat(filepath.Join(d.dir, "sessions", sb.ID)); err != nil {
		t.Errorf("a sandbox's own logs: %v", err)
	}
	if err := sb.Remove(ctx, true); err != nil {
		t.Fatal(err)
	}
}
