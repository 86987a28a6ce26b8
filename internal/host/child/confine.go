package child

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/confine/seccomp"
	"github.com/sandtree/sandtree/internal/linux/landlock"
)

// Confinement bounds what a child of root's may do. It also has no_new_privs, and
// calls that no work on files needs are refused: those that trace, mount, load
// code into the kernel, make namespaces, sockets or keys.
type Confinement struct {
	Capabilities []int // CAP_* that it keeps
	// Below these paths, which exist, it may read, and write. The rest of the
	// file system is closed, where the kernel has Landlock, but for /proc, /sys and
	// the libraries of a program that is linked to some.
	Readable, Writable []string
}

// apply confines the calling thread, which is locked to its goroutine, and what
// it starts: a program that it can read.
func (c *Confinement) apply(program string) error {
	keep := map[uintptr]bool{}
	for _, n := range c.Capabilities {
		keep[uintptr(n)] = true //nolint:gosec // a small number
	}
	if err := boundTo(keep); err != nil {
		return err
	}
	rules := []landlock.Rule{{Path: "/dev/null", Access: landlock.Write}}
	for _, p := range append([]string{program, "/proc", "/sys", "/usr", "/lib", "/lib64"}, c.Readable...) {
		rules = append(rules, landlock.Rule{Path: p, Access: landlock.Read})
	}
	for _, p := range c.Writable {
		rules = append(rules, landlock.Rule{Path: p, Access: landlock.Write})
	}
	// A path that is not there needs no rule.
	kept := rules[:0]
	for _, r := range rules {
		if unix.Access(r.Path, unix.F_OK) == nil {
			kept = append(kept, r)
		}
	}
	if err := landlock.Restrict(kept...); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	filter, err := withoutPower()
	if err != nil {
		return err
	}
	return seccomp.Install(filter)
}
