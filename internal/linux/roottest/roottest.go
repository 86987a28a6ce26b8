// Package roottest lets tests skip what root alone may do, and nothing else.
package roottest

import (
	"os"
	"testing"
)

// NotRootError says that a test needs what root alone may do.
type NotRootError struct {
	For string // what it needs root for
}

func (e *NotRootError) Error() string { return e.For + " needs root" }

// Need skips the test unless it runs as root; what it needs that for is said.
func Need(t testing.TB, what string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skipf("skipped: %v", &NotRootError{what})
	}
}
