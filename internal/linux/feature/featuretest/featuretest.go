// Package featuretest lets tests skip what the running kernel cannot do, and
// nothing else.
package featuretest

import (
	"errors"
	"testing"

	"github.com/sandtree/sandtree/internal/linux/feature"
)

// SkipIfMissing skips the test if err is because of a missing feature, and
// says which. Any other error is left to the caller.
func SkipIfMissing(t testing.TB, err error) {
	t.Helper()
	var m *feature.MissingError
	if errors.As(err, &m) {
		t.Skipf("skipped: %v", m)
	}
}

// Need skips the test if the named feature is missing, and fails it if that
// cannot be found out.
func Need(t testing.TB, name string) {
	t.Helper()
	err := feature.Named(name).Check()
	SkipIfMissing(t, err)
	if err != nil {
		t.Fatal(err)
	}
}
