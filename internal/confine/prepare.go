package confine

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// Rlimit is the wanted limit of one resource (getrlimit(2)).
type Rlimit struct {
	Resource  int
	Soft, Max uint64
}

const unlimited = unix.RLIM_INFINITY

// Rlimits are the limits that the processes of a sandbox start with. Memory,
// CPU time and processes are bounded by cgroup; the numbers are those of
// systemd's services and the kernel's own defaults.
var Rlimits = []Rlimit{
	{unix.RLIMIT_CPU, unlimited, unlimited},
	{unix.RLIMIT_FSIZE, unlimited, unlimited},
	{unix.RLIMIT_DATA, unlimited, unlimited},
	{unix.RLIMIT_STACK, 8 << 20, unlimited},
	{unix.RLIMIT_CORE, 1, unlimited}, // 1: no file, and no pipe to the host's program (core(5))
	{unix.RLIMIT_RSS, unlimited, unlimited},
	{unix.RLIMIT_NPROC, unlimited, unlimited},
	{unix.RLIMIT_NOFILE, 1024, 512 << 10}, // soft: select(2) ends there
	{unix.RLIMIT_MEMLOCK, 8 << 20, 8 << 20},
	{unix.RLIMIT_AS, unlimited, unlimited},
	{unix.RLIMIT_LOCKS, unlimited, unlimited},
	{unix.RLIMIT_SIGPENDING, 16 << 10, 16 << 10},
	{unix.RLIMIT_MSGQUEUE, 800 << 10, 800 << 10},
	{unix.RLIMIT_NICE, 0, 0},
	{unix.RLIMIT_RTPRIO, 0, 0},
	{unix.RLIMIT_RTTIME, unlimited, unlimited},
}

// oomScoreAdj makes the OOM killer of the whole machine prefer processes of
// sandboxes to the daemon's (proc_pid_oom_score_adj(5)).
const oomScoreAdj = 300

// Prepare sets what a stub on the host side, a seed or zygote, passes on to
// everything that it clones: limits and OOM score. Processes inside could
// lower limits but not raise them. A hard limit of our own that is lower than
// the wanted one stays, as raising it takes CAP_SYS_RESOURCE.
func Prepare(pid int) error {
	for _, want := range Rlimits {
		var now unix.Rlimit
		if err := unix.Prlimit(pid, want.Resource, nil, &now); err != nil {
			return prepareError(pid, err)
		}
		set := unix.Rlimit{Cur: want.Soft, Max: want.Max}
		err := unix.Prlimit(pid, want.Resource, &set, nil)
		if err == unix.EPERM {
			set.Max = min(set.Max, now.Max)
			set.Cur = min(set.Cur, set.Max)
			err = unix.Prlimit(pid, want.Resource, &set, nil)
		}
		if err != nil {
			return prepareError(pid, fmt.Errorf("limit %d: %w", want.Resource, err))
		}
	}
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), fmt.Append(nil, oomScoreAdj), 0); err != nil {
		return prepareError(pid, err)
	}
	return nil
}

func prepareError(pid int, err error) error {
	return fault.New(fault.Internal, "limit what process %d passes on: %w", pid, err)
}
