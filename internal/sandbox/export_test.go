package sandbox

import "time"

// SetPatience sets how long PID 1 may take for a batch, and returns how long it
// was.
func SetPatience(d time.Duration) (old time.Duration) {
	old, patience = patience, d
	return old
}

// ParseMountinfo parses it, and tells what it saw of each mount.
func ParseMountinfo(text []byte) (devices map[string]uint64, err error) {
	all, err := parseMountinfo(text)
	devices = map[string]uint64{}
	for _, m := range all {
		devices[m.path] = m.device
	}
	return devices, err
}

// NumbersOf are the numbers that mounts at paths show.
func NumbersOf(paths ...string) []int {
	n := numbers{}
	var out []int
	for _, p := range paths {
		out = append(out, n.of(p))
	}
	return out
}
