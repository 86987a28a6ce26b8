package process

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/thread"
)

// asLimiter calls f on this OS thread, as one who may read and set resource limits of
// processes inside. That takes CAP_SYS_RESOURCE in their user namespace
// (prlimit(2)): root has it mostly, and whom the namespace belongs to in any case.
func (c *Config) asLimiter(f func() error) error {
	if c.Owner == 0 || mayLimit() {
		return f()
	}
	return thread.As(c.Owner, f)
}

// mayLimit reports whether this process has CAP_SYS_RESOURCE.
var mayLimit = sync.OnceValue(func() bool {
	var caps [2]unix.CapUserData
	err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &caps[0])
	return err == nil && caps[0].Effective>>unix.CAP_SYS_RESOURCE&1 != 0
})

// readLimits reads the resource limits of all processes.
func (l *Live) readLimits() error {
	return l.cfg.asLimiter(func() error {
		for _, p := range l.order {
			for r := range p.image.Limits {
				if err := unix.Prlimit(p.host, r, nil, &p.image.Limits[r]); err != nil {
					return fmt.Errorf("resource limits of process %d: %w", p.pid, err)
				}
			}
		}
		return nil
	})
}

// withAllDescriptors calls f while a process may have as many descriptors as its
// hard limit says (getrlimit(2)).
func (c *Config) withAllDescriptors(pid int, f func() error) error {
	set := func(to *unix.Rlimit, was *unix.Rlimit) error {
		if err := c.asLimiter(func() error { return unix.Prlimit(pid, unix.RLIMIT_NOFILE, to, was) }); err != nil {
			return fmt.Errorf("limit of descriptors: %w", err)
		}
		return nil
	}
	var soft unix.Rlimit
	if err := set(nil, &soft); err != nil {
		return err
	}
	if err := set(&unix.Rlimit{Cur: soft.Max, Max: soft.Max}, nil); err != nil {
		return err
	}
	err := f()
	return errors.Join(err, set(&soft, nil))
}

// raiseDescriptors lets a process have n descriptors.
func (c *Config) raiseDescriptors(pid, n int) error {
	err := c.asLimiter(func() error {
		var now unix.Rlimit
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &now); err != nil || now.Cur >= uint64(n) {
			return err
		}
		now.Cur, now.Max = uint64(n), max(now.Max, uint64(n))
		return unix.Prlimit(pid, unix.RLIMIT_NOFILE, &now, nil)
	})
	if err != nil {
		return fmt.Errorf("limit of descriptors: %w", err)
	}
	return nil
}

// setLimits sets resource limits, as far up as this process may: its own hard limits
// are the most without CAP_SYS_RESOURCE.
func (c *Config) setLimits(pid int, limits []unix.Rlimit) error {
	return c.asLimiter(func() error {
		for res, l := range limits {
			if err := setLimit(pid, res, l); err != nil {
				return err
			}
		}
		return nil
	})
}

func setLimit(pid, resource int, l unix.Rlimit) error {
	var now unix.Rlimit
	if err := unix.Prlimit(pid, resource, nil, &now); err != nil {
		return fmt.Errorf("resource limit %d: %w", resource, err)
	}
	if now == l {
		return nil
	}
	err := unix.Prlimit(pid, resource, &l, nil)
	if err == unix.EPERM {
		l.Max = min(l.Max, now.Max)
		l.Cur = min(l.Cur, l.Max)
		err = unix.Prlimit(pid, resource, &l, nil)
	}
	if err != nil {
		return fmt.Errorf("resource limit %d: %w", resource, err)
	}
	return nil
}
