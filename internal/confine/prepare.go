package confine

import (
	"fmt"
	"os"
	"slices"

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

// shared are limits of resources that the kernel counts for who made a user namespace,
// too, with the limit that he had then (user_namespaces(7), struct
// user_namespace.rlimit_max): what all sandboxes may have together of it. Of pending
// signals and timers half of what root's own programs may have is left to those.
func shared() ([]Rlimit, error) {
	var own unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_SIGPENDING, &own); err != nil {
		return nil, fault.New(fault.Internal, "getrlimit: %w", err)
	}
	signals := min(max(own.Max/2, 4<<10), 1<<20)
	return []Rlimit{{unix.RLIMIT_SIGPENDING, signals, signals}, {unix.RLIMIT_MSGQUEUE, MessageQueueBytes, MessageQueueBytes}}, nil
}

// MessageQueueBytes is RLIMIT_MSGQUEUE of those who make what sandboxes have: the
// kernel counts all of that for them. Each sandbox's own limit is lower.
const MessageQueueBytes = 64 << 20

// Prepare sets what a stub on the host side, a seed or zygote, passes on to
// everything that it clones: limits and OOM score. Processes inside could
// lower limits but not raise them. A hard limit of our own that is lower than
// the wanted one stays, as raising it takes CAP_SYS_RESOURCE.
//
// What it clones into a user namespace of its own needs [Bound].
func Prepare(pid int) error {
	together, err := shared()
	if err == nil {
		err = limit(pid, slices.DeleteFunc(slices.Clone(Rlimits), isShared)) // not lowered before they are raised
	}
	if err == nil {
		err = limit(pid, together)
	}
	if err != nil {
		return err
	}
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), fmt.Append(nil, oomScoreAdj), 0); err != nil {
		return prepareError(pid, err)
	}
	return nil
}

func prepareError(pid int, err error) error {
	return fault.New(fault.Internal, "limit what process %d passes on: %w", pid, err)
}

// Bound gives a PID 1 that a prepared seed has just cloned the limits of a sandbox
// where those of all sandboxes are others.
func Bound(pid int) error {
	return limit(pid, slices.DeleteFunc(slices.Clone(Rlimits), func(r Rlimit) bool { return !isShared(r) }))
}

func isShared(r Rlimit) bool {
	return r.Resource == unix.RLIMIT_SIGPENDING || r.Resource == unix.RLIMIT_MSGQUEUE
}

// Maker lets this process make the message queues of restored sandboxes.
func Maker() error {
	return limit(0, []Rlimit{{unix.RLIMIT_MSGQUEUE, MessageQueueBytes, MessageQueueBytes}})
}

func limit(pid int, limits []Rlimit) error {
	for _, want := range limits {
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
	return nil
}
