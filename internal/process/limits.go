package process

import (
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/thread"
)

// asRuler calls f on this OS thread, as one who may read and set resource limits,
// processors and priorities of processes inside. That takes CAP_SYS_RESOURCE and
// CAP_SYS_NICE in their user namespace (prlimit(2), sched_setaffinity(2)): root has
// them mostly, and whom the namespace belongs to in any case.
func (c *Config) asRuler(f func() error) error {
	if c.Owner == 0 || mayRule() {
		return f()
	}
	return thread.As(c.Owner, f)
}

// mayRule reports whether this process has the two capabilities.
var mayRule = sync.OnceValue(func() bool {
	const both = 1<<unix.CAP_SYS_RESOURCE | 1<<unix.CAP_SYS_NICE
	var caps [2]unix.CapUserData
	err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &caps[0])
	return err == nil && caps[0].Effective&both == both
})

// readLimits reads the resource limits of all processes.
func (l *Live) readLimits() error {
	return l.cfg.asRuler(func() error {
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

// withMore calls f while a process may have n of a resource (getrlimit(2)), or more if
// its hard limit says so: nobody else may be hindered by a limit of its own. Who may not
// raise hard limits leaves it at that.
func (c *Config) withMore(pid, resource int, n uint64, f func() error) error {
	set := func(to *unix.Rlimit, was *unix.Rlimit) error {
		if err := c.asRuler(func() error { return unix.Prlimit(pid, resource, to, was) }); err != nil {
			return fmt.Errorf("resource limit %d: %w", resource, err)
		}
		return nil
	}
	var was unix.Rlimit
	if err := set(nil, &was); err != nil {
		return err
	}
	most := max(n, was.Max)
	err := set(&unix.Rlimit{Cur: most, Max: most}, nil)
	if errors.Is(err, unix.EPERM) {
		err = set(&unix.Rlimit{Cur: was.Max, Max: was.Max}, nil)
	}
	if err != nil {
		return err
	}
	err = f()
	return errors.Join(err, set(&was, nil))
}

// withAllMemory calls f while no limit of memory holds for a process.
func (c *Config) withAllMemory(pid int, f func() error) error {
	for _, resource := range []int{unix.RLIMIT_AS, unix.RLIMIT_DATA, unix.RLIMIT_MEMLOCK} {
		inner := f
		f = func() error { return c.withMore(pid, resource, unix.RLIM_INFINITY, inner) }
	}
	return f()
}

// raiseDescriptors lets a process have n descriptors.
func (c *Config) raiseDescriptors(pid, n int) error {
	err := c.asRuler(func() error {
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

// setLimit sets a resource limit, as far up as this process may: its own hard limit
// is the most without CAP_SYS_RESOURCE.
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
