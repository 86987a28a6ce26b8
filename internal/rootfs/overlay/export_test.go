package overlay

import "testing"

// ForceAttach makes the stores that a test opens take the way of kernels
// before 6.15.
func ForceAttach(t *testing.T) {
	forceAttach = true
	t.Cleanup(func() { forceAttach = false })
}
