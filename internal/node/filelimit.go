package node

import (
	"log/slog"
	"math"

	"golang.org/x/sys/unix"
)

// usualFiles is how many descriptors a process may have where nobody has set it: the
// kernel's INR_OPEN_CUR.
const usualFiles = 1024

// raiseFileLimit takes all descriptors that the process may have: each session
// that runs needs about six. Go raises its own soft limit at the start, but
// not above what the process began with. It returns how many it has then.
func raiseFileLimit(log *slog.Logger) int {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		log.Warn("the limit of open files cannot be read", "taken", usualFiles, "error", err)
		return usualFiles
	}
	if raised := (unix.Rlimit{Cur: l.Max, Max: l.Max}); l.Cur < l.Max {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &raised); err != nil {
			log.Warn("the limit of open files could not be raised", "limit", l.Cur, "error", err)
		} else {
			l = raised
		}
	}
	return int(min(l.Cur, math.MaxInt32)) //nolint:gosec // bounded
}
