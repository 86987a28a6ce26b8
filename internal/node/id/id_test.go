package id_test

import (
	"testing"

	"github.com/sandtree/sandtree/internal/node/id"
)

func TestIDs(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		for _, s := range []string{id.New(id.Checkpoint), id.NewSandbox(id.NewTag())} {
			if seen[s] || !id.Looks(s) {
				t.Fatalf("%q comes twice or does not look like an id", s)
			}
			seen[s] = true
		}
	}
	for _, name := range []string{"debian", "sb-test", "my-sandbox-of-tuesday", "cp-", "", "im-UPPERCASELETTERS", "tp-with_underscore_x"} {
		if id.Looks(name) {
			t.Errorf("the name %q looks like an id", name)
		}
	}
}
