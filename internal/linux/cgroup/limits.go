package cgroup

import (
	"errors"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// Limits bound one group. Zero means no bound.
type Limits struct {
	// MemoryBytes bounds memory, page cache included, and forbids swap
	// beyond it.
	MemoryBytes int64
	// CPUs bounds CPU time, in CPUs: 1.5 is 150 ms in each 100 ms.
	CPUs float64
	// PIDs bounds the number of tasks, threads included.
	PIDs int64
}

const (
	cpuPeriod   = 100_000 // µs, the kernel's default
	minCPUQuota = 1_000   // µs, the least that the kernel takes (sched/core.c)
	minMemory   = 1 << 20 // below it nothing can start
)

// Check refuses limits that cannot work.
func (l Limits) Check() error {
	switch {
	case l.MemoryBytes < 0 || l.MemoryBytes > 0 && l.MemoryBytes < minMemory:
		return fault.New(fault.Invalid, "memory limit of %d bytes: at least %d are needed", l.MemoryBytes, minMemory)
	case l.CPUs < 0 || math.IsNaN(l.CPUs) || l.CPUs > 1<<16 || l.CPUs > 0 && l.CPUs*cpuPeriod < minCPUQuota:
		return fault.New(fault.Invalid, "CPU limit of %g: at least 0.01 is needed", l.CPUs)
	case l.PIDs < 0 || l.PIDs > 1<<22: // PID_MAX_LIMIT
		return fault.New(fault.Invalid, "limit of %d pids: it must be between 1 and %d", l.PIDs, 1<<22)
	}
	return nil
}

// quota is CPUs in microseconds per period.
func (l Limits) quota() int64 { return int64(l.CPUs*cpuPeriod + 0.5) }

// maxOr formats n, or "max" for zero, as v2 and pids.max want it.
func maxOr(n int64) string {
	if n == 0 {
		return "max"
	}
	return strconv.FormatInt(n, 10)
}

func (l Layout) supports(limits Limits) error {
	for _, c := range l.Missing() {
		if c == Memory && limits.MemoryBytes > 0 || c == CPU && limits.CPUs > 0 || c == PIDs && limits.PIDs > 0 {
			return fault.New(fault.Unsupported, "no cgroup hierarchy has the %s controller that the limit needs", c).
				WithHint("it may be off in the kernel's command line (cgroup_disable=), or not delegated to sandtree")
		}
	}
	return nil
}

// Limits are the limits as last set.
func (g *Group) Limits() Limits {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.limits
}

// SetLimits changes the limits of a group with or without processes. On
// error some may have been changed; [Group.Limits] stays at the old ones.
func (g *Group) SetLimits(limits Limits) error {
	if err := limits.Check(); err != nil {
		return err
	}
	if err := g.layout.supports(limits); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.setLimits(g.limits, limits); err != nil {
		return err
	}
	g.limits = limits
	return nil
}

func (g *Group) setLimits(old, limits Limits) error {
	if old.MemoryBytes != limits.MemoryBytes {
		if err := g.setMemory(limits.MemoryBytes); err != nil {
			return err
		}
	}
	if old.CPUs != limits.CPUs {
		if err := g.setCPUs(limits); err != nil {
			return err
		}
	}
	if old.PIDs != limits.PIDs {
		dir, _ := g.dirOf(PIDs)
		if err := write(filepath.Join(dir, "pids.max"), maxOr(limits.PIDs)); err != nil {
			return fault.New(fault.Internal, "limit pids of %s: %w", g.id, err)
		}
	}
	return nil
}

func (g *Group) setCPUs(limits Limits) error {
	dir, version := g.dirOf(CPU)
	var err error
	switch {
	case version == 0:
		return fault.New(fault.Conflict, "limit CPU time of %s: it was made without such a limit, and the v1 controller cannot be joined later", g.id)
	case version == 2 && limits.CPUs == 0:
		err = write(filepath.Join(dir, "cpu.max"), "max")
	case version == 2:
		err = write(filepath.Join(dir, "cpu.max"), strconv.FormatInt(limits.quota(), 10)+" "+strconv.Itoa(cpuPeriod))
	case limits.CPUs == 0:
		err = write(filepath.Join(dir, "cpu.cfs_quota_us"), "-1")
	default:
		if err = write(filepath.Join(dir, "cpu.cfs_period_us"), strconv.Itoa(cpuPeriod)); err == nil {
			err = write(filepath.Join(dir, "cpu.cfs_quota_us"), strconv.FormatInt(limits.quota(), 10))
		}
	}
	if err != nil {
		return fault.New(fault.Internal, "limit CPU time of %s: %w", g.id, err)
	}
	return nil
}

// setMemory bounds memory and swap. Swap files are missing where swap is
// compiled out or its accounting is off (swapaccount=0).
func (g *Group) setMemory(n int64) error {
	dir, version := g.dirOf(Memory)
	var err error
	if version == 2 {
		swap := "0"
		if n == 0 {
			swap = "max"
		}
		if err = optional(write(filepath.Join(dir, "memory.swap.max"), swap)); err == nil {
			err = write(filepath.Join(dir, "memory.max"), maxOr(n))
		}
	} else {
		err = setMemoryV1(dir, n)
	}
	if errors.Is(err, unix.EBUSY) {
		return fault.New(fault.Conflict, "limit memory of %s to %d bytes: it uses more and cannot be reclaimed", g.id, n)
	}
	if err != nil {
		return fault.New(fault.Internal, "limit memory of %s: %w", g.id, err)
	}
	return nil
}

// setMemoryV1 keeps the kernel's rule that memory+swap is never bounded below
// memory: upwards memory+swap goes first, downwards last.
func setMemoryV1(dir string, n int64) error {
	limit := filepath.Join(dir, "memory.limit_in_bytes")
	both := filepath.Join(dir, "memory.memsw.limit_in_bytes")
	text := "-1"
	up := true
	if n > 0 {
		text = strconv.FormatInt(n, 10)
		now, err := readUint(both)
		if optional(err) != nil {
			return err
		}
		up = err == nil && uint64(n) > now
	}
	order := []string{limit, both}
	if up {
		order = []string{both, limit}
	}
	for _, f := range order {
		err := write(f, text)
		if f == both {
			err = optional(err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// optional forgives a file that this kernel does not have.
func optional(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return err
}

func readUint(path string) (uint64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	s := strings.TrimSpace(string(b))
	if s == "max" {
		return 0, nil
	}
	return strconv.ParseUint(s, 10, 64)
}
