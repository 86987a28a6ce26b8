package cli

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sandtree/sandtree/internal/host/layout"
)

// The daemon is started in another directory.
func TestStateDirectoryIsAbsolute(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("SANDTREE_STATE", "")
	for given, want := range map[string]string{"x/y": filepath.Join(here, "x/y"), "/a/../b": "/b", "": layout.DefaultState} {
		inv := invocation{state: given}
		if err := inv.settleState(); err != nil || inv.state != want {
			t.Errorf("%q: %q, %v: want %q", given, inv.state, err, want)
		}
	}
}
