package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// Stats is what a group uses. A value that this kernel does not tell is zero.
type Stats struct {
	CPU       time.Duration // used by all tasks so far
	Memory    int64         // bytes now, page cache included
	MemoryMax int64         // the most so far, bytes
	PIDs      int64         // tasks now
	OOMKills  uint64        // processes that the kernel killed for memory so far
	Pressure  Pressure
}

// Pressure is the share of the last ten seconds, in percent, in which some
// task waited for a resource (Documentation/accounting/psi.rst). All are zero
// where PSI is off (psi=1 on the kernel's command line turns it on).
type Pressure struct {
	CPU, Memory, IO float64
}

// Stats measures the group.
func (g *Group) Stats() (Stats, error) {
	var s Stats
	cpu, err := os.ReadFile(filepath.Join(g.unified, "cpu.stat"))
	if err != nil {
		return s, fault.New(fault.Internal, "measure cgroup %s: %w", g.id, err)
	}
	parseKeyed(string(cpu), func(k string, v uint64) {
		if k == "usage_usec" {
			s.CPU = time.Duration(v) * time.Microsecond
		}
	})
	if dir, version := g.dirOf(Memory); version != 0 {
		now, most := "memory.current", "memory.peak" // peak: 5.19
		if version == 1 {
			now, most = "memory.usage_in_bytes", "memory.max_usage_in_bytes"
		}
		if s.Memory, err = count(dir, now); err == nil {
			s.MemoryMax, err = count(dir, most)
		}
		if err == nil {
			s.OOMKills, err = g.oomKills()
		}
	}
	if dir, version := g.dirOf(PIDs); version != 0 && err == nil {
		s.PIDs, err = count(dir, "pids.current")
	}
	if err != nil {
		return s, fault.New(fault.Internal, "measure cgroup %s: %w", g.id, err)
	}
	for _, r := range []struct {
		file string
		to   *float64
	}{{"cpu.pressure", &s.Pressure.CPU}, {"memory.pressure", &s.Pressure.Memory}, {"io.pressure", &s.Pressure.IO}} {
		if b, err := os.ReadFile(filepath.Join(g.unified, r.file)); err == nil {
			*r.to = parsePressure(string(b))
		}
	}
	return s, nil
}

func count(dir, file string) (int64, error) {
	n, err := readUint(filepath.Join(dir, file))
	return int64(n), optional(err)
}

// oomKills reads how many processes the kernel killed for memory. The v1
// count is in memory.oom_control since 4.13.
func (g *Group) oomKills() (kills uint64, err error) {
	var buf [1024]byte
	g.mu.Lock()
	fd := g.oom
	n := 0
	if fd >= 0 {
		n, err = unix.Pread(fd, buf[:], 0)
	}
	g.mu.Unlock()
	if err != nil {
		return 0, err
	}
	parseKeyed(string(buf[:n]), func(k string, v uint64) {
		if k == "oom_kill" {
			kills = v
		}
	})
	return kills, nil
}

// openOOM opens what tells the OOM kills: every command that is started asks.
func (g *Group) openOOM() (err error) {
	dir, version := g.dirOf(Memory)
	if version == 0 {
		return nil
	}
	file := "memory.events"
	if version == 1 {
		file = "memory.oom_control"
	}
	g.oom, err = unix.Open(filepath.Join(dir, file), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	return err
}

// parsePressure reads avg10 of the "some" line.
func parsePressure(text string) float64 {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "some" {
			continue
		}
		if v, ok := strings.CutPrefix(f[1], "avg10="); ok {
			x, err := strconv.ParseFloat(v, 64)
			if err == nil && x >= 0 && x <= 100 {
				return x
			}
		}
	}
	return 0
}

// OOMKills tells how many processes of the group the kernel killed for memory
// so far; 0 for a group that is gone.
func (g *Group) OOMKills() (uint64, error) {
	n, err := g.oomKills()
	if gone(err) || errors.Is(err, unix.EOPNOTSUPP) {
		return 0, nil
	}
	if err != nil {
		return 0, fault.New(fault.Internal, "read OOM kills of cgroup %s: %w", g.id, err)
	}
	return n, nil
}
