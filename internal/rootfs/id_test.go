package rootfs

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandtree/sandtree/internal/fault"
)

func TestValidID(t *testing.T) {
	for _, s := range []string{"a", "sb-k3x7", "cp-1", "sb.0", "0", strings.Repeat("z", 127)} {
		if err := ValidID(s); err != nil {
			t.Error(err)
		}
	}
	for _, s := range []string{"", ".", "..", ".rm-a", "-a", "_a", "A", "a b", "a/b", "a\x00", "a,b", "a:b", "ä", strings.Repeat("z", 128)} {
		if err := ValidID(s); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", s, err)
		}
	}
}

// FuzzValidID looks for an id that could mean something to a path or to a
// mount option.
func FuzzValidID(f *testing.F) {
	for _, s := range []string{"sb-1", "..", "a/b", "a:b", ".x", "a,upperdir=/"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if ValidID(s) != nil {
			return
		}
		if filepath.Base(filepath.Join("/pool", s)) != s || strings.ContainsAny(s, ",:=\\\x00/") || len(s) > 127 || s[0] == '.' {
			t.Errorf("%q is valid", s)
		}
	})
}
