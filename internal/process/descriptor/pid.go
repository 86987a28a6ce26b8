package descriptor

import (
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// insidePID translates the number of a process, thread or process group of
// this namespace into the sandbox's. It is 0 for what has ended.
func (c *Capturer) insidePID(host int, group bool) int {
	if host <= 0 {
		return 0
	}
	if group {
		for i := range c.procs {
			p := &c.procs[i]
			if g, err := unix.Getpgid(p.HostPID); err == nil && g == host {
				return p.Group
			}
		}
		return 0
	}
	text, err := c.slurp(unix.AT_FDCWD, "/proc/"+strconv.Itoa(host)+"/status", true)
	if err != nil {
		return 0
	}
	all, _ := field(text, "NSpid")
	f := strings.Fields(all)
	if len(f) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(f[len(f)-1])
	return n
}
