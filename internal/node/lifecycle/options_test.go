package lifecycle

import (
	"testing"

	"github.com/sandtree/sandtree/internal/fault"
)

// Names with line breaks could not be told from two variables where one prints them.
func TestNamesOfVariables(t *testing.T) {
	for _, name := range []string{"A", "a.b-c", "BASH_FUNC_f%%", "MIT LEERZEICHEN", "ü"} {
		if err := checkEnv(map[string]string{name: "x\ny=\t"}); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"", "A=B", "A\nB", "A\x00", "\x1b[2J", "A\x7f"} {
		if err := checkEnv(map[string]string{name: "x"}); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", name, err)
		}
	}
	if err := checkEnv(map[string]string{"A": "a\x00b"}); !fault.Is(err, fault.Invalid) {
		t.Errorf("a NUL byte in a value: %v", err)
	}
}
