package sandbox

import "time"

// SetPatience sets how long PID 1 may take for a batch, and returns how long it
// was.
func SetPatience(d time.Duration) (old time.Duration) {
	old, patience = patience, d
	return old
}
