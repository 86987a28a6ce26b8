package soak

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/host/layout"
	"github.com/sandtree/sandtree/internal/testdaemon"
)

// census is what a daemon has on the machine, by name.
type census map[string]int64

// take counts processes, threads, descriptors, mounts, cgroups, memory and
// disk of a daemon.
func take(d *testdaemon.Daemon) census {
	c := census{}
	parts := map[string][]int{"host": {d.HostPID()}, "node": d.Parts("node"), "supervisor": d.Parts("supervisor")}
	for part, pids := range parts {
		for _, pid := range pids {
			proc := fmt.Sprintf("/proc/%d/", pid)
			c[part+" descriptors"] += entries(proc + "fd")
			c[part+" KiB"] += status(pid, "RssAnon:")
			c[part+" children"] += int64(len(strings.Fields(read(proc + fmt.Sprintf("task/%d/children", pid)))))
		}
	}
	c["mounts"] = int64(strings.Count(read(fmt.Sprintf("/proc/%d/mountinfo", d.HostPID())), "\n"))
	c["sessions' logs"] = entries(filepath.Join(d.State, "sessions"))
	groups, inside := cgroups(d)
	c["cgroups"], c["processes in cgroups"] = groups, inside
	c["pool MiB"] = poolUse(d) >> 20
	c["durable MiB"] = allocated(filepath.Join(d.State, "durable")) >> 20
	c["loop devices"] = loops(d)
	return c
}

func read(path string) string {
	b, _ := os.ReadFile(path)
	return string(b)
}

func entries(dir string) int64 {
	all, _ := os.ReadDir(dir)
	return int64(len(all))
}

// status is a number in a process's status; see proc_pid_status(5).
func status(pid int, field string) int64 {
	for line := range strings.Lines(read(fmt.Sprintf("/proc/%d/status", pid))) {
		if rest, ok := strings.CutPrefix(line, field); ok {
			var n int64
			_, _ = fmt.Sscan(rest, &n)
			return n
		}
	}
	return 0
}

// cgroups counts the groups of the daemon, which have its name, and the
// processes in them.
func cgroups(d *testdaemon.Daemon) (groups, processes int64) {
	l, err := layout.Of(d.State)
	if err != nil {
		return -1, -1
	}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() && strings.Contains(path, l.Name) {
			groups++
			processes += int64(len(strings.Fields(read(filepath.Join(path, "cgroup.procs")))))
		}
		return nil
	})
	return groups, processes
}

// loops counts the loop devices of the daemon's files.
func loops(d *testdaemon.Daemon) (n int64) {
	all, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, f := range all {
		if strings.Contains(read(f), d.State) {
			n++
		}
	}
	return n
}

// poolUse is how many bytes the pools of the daemon hold, as seen from its
// mount namespace.
func poolUse(d *testdaemon.Daemon) (bytes int64) {
	pools, _ := filepath.Glob(fmt.Sprintf("/proc/%d/root%s/mnt/pools/*", d.HostPID(), d.State))
	for _, at := range pools {
		var st unix.Statfs_t
		if unix.Statfs(at, &st) == nil && st.Type == unix.BTRFS_SUPER_MAGIC { // else it was just unmounted
			bytes += int64(st.Blocks-st.Bfree) * st.Bsize //nolint:gosec // far below
		}
	}
	return bytes
}

// allowed is how much of a thing there may be, where there was n before. What
// stands ready for the next sandbox comes and goes.
func allowed(what string, n int64) int64 {
	switch {
	case what == "sessions' logs":
		return n
	case what == "supervisor KiB": // see TestSoak
		return 1 << 40
	case strings.HasSuffix(what, "KiB"):
		return n*3/2 + 48<<10
	case strings.HasSuffix(what, "MiB"):
		return n + 32
	}
	return n + 8
}

// flatWithin is how long what goes on after the last call may take: bodies end,
// files are deleted at their pace.
const flatWithin = 90 * time.Second

// settles returns when the daemon has no more than it had before, or says what
// it has more of.
func settles(d *testdaemon.Daemon, before census) error {
	for begin := time.Now(); ; time.Sleep(200 * time.Millisecond) {
		var more []string
		for what, n := range take(d) {
			if n > allowed(what, before[what]) {
				more = append(more, fmt.Sprintf("%s: %d, and %d before", what, n, before[what]))
			}
		}
		if len(more) == 0 {
			return nil
		}
		if time.Since(begin) > flatWithin {
			return fmt.Errorf("left behind: %s", strings.Join(more, "; "))
		}
	}
}
