package feature

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/thread"
)

var processFeatures = []Feature{
	{
		Name: "user namespaces", Kernel: "3.8", Required: true,
		For:     "root inside a sandbox is nobody outside",
		Without: "nothing runs",
		Help:    "sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, or CONFIG_USER_NS",
		probe:   func() error { return runExit(namespaces(unix.CLONE_NEWUSER)) },
	},
	{
		Name: "other namespaces", Kernel: "4.6", Required: true,
		For:     "pids, mounts, network, IPC, host name and cgroups of a sandbox's own",
		Without: "nothing runs",
		probe: func() error {
			return runExit(namespaces(unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET |
				unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP))
		},
	},
	{
		Name: "time namespaces", Kernel: "5.6",
		For:     "clocks of a restored sandbox go on from the checkpoint",
		Without: "monotonic time jumps at a rollback, and timers fire early",
		Help:    "CONFIG_TIME_NS",
		probe:   func() error { return runExit(unshared(unix.CLONE_NEWTIME)) },
	},
	{
		Name: "clone3 with chosen pids", Kernel: "5.5", Required: true,
		For:     "restored processes and threads have the numbers that they had",
		Without: "nothing can be rolled back or forked",
		probe:   probeSetTID,
	},
	{
		Name: "clone into a cgroup", Kernel: "5.7", Required: true,
		For:     "a process is in its sandbox's cgroup from its first instruction",
		Without: "nothing runs",
		probe:   probeCloneIntoCgroup,
	},
	{
		Name: "pidfd_getfd", Kernel: "5.6", Required: true,
		For:     "descriptors of a stopped process are taken out without a word from it",
		Without: "nothing can be checkpointed",
		probe:   probePidfdGetfd,
	},
	{
		Name: "kcmp", Kernel: "3.5", Required: true,
		For:     "descriptors that processes share are told from those that only look alike",
		Without: "nothing can be checkpointed",
		Help:    "CONFIG_KCMP or CONFIG_CHECKPOINT_RESTORE",
		probe: func() error {
			pid := uintptr(os.Getpid())
			_, _, e := unix.Syscall6(unix.SYS_KCMP, pid, pid, kcmpVM, 0, 0, 0)
			return call("kcmp", e)
		},
	},
	{
		Name: "ptrace past seccomp", Kernel: "4.3", Required: true,
		For:     "calls that a checkpoint makes in a sandboxed process are not stopped by its filter",
		Without: "nothing can be checkpointed",
		Help:    "CONFIG_CHECKPOINT_RESTORE; a daemon that is itself under a seccomp filter cannot use it",
		probe:   probeSuspendSeccomp,
	},
	{
		Name: "seccomp filters", Kernel: "4.14", Required: true,
		For:     "sandboxed processes make only harmless system calls",
		Without: "nothing runs",
		Help:    "CONFIG_SECCOMP_FILTER",
		probe:   probeSeccomp,
	},
	{
		Name: "Landlock", Kernel: "5.13",
		For:     "templates that let programs write below certain directories only",
		Without: "such templates are refused",
		Help:    "CONFIG_SECURITY_LANDLOCK, and landlock in the kernel's lsm= list",
		probe:   func() error { _, e := landlockABI(); return e },
	},
	{
		Name: "real-time priority", Kernel: "2.6",
		For:     "the stop of a checkpoint does not wait for a CPU behind other work",
		Without: "1 in 100 checkpoints on a busy machine takes 6 to 40 ms instead of 1.5",
		Help:    "CAP_SYS_NICE, and with CONFIG_RT_GROUP_SCHED a cpu.rt_runtime_us in the daemon's own cgroup",
		probe:   probeRealtime,
	},
}

const kcmpVM = 1

// call names the system call in its error.
func call(name string, e unix.Errno) error {
	if e == 0 {
		return nil
	}
	return fmt.Errorf("%s: %w", name, e)
}

// LandlockABI is the version of Landlock's interface, from 1 up. The error is
// a [*MissingError].
var LandlockABI = sync.OnceValues(func() (int, error) {
	n, err := landlockABI()
	if err != nil {
		return 0, Missing("Landlock", err)
	}
	return n, nil
})

func landlockABI() (int, error) {
	n, _, e := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	return int(n), call("landlock_create_ruleset", e)
}

func probePidfdGetfd() error {
	pidfd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return fmt.Errorf("pidfd_open: %w", err)
	}
	defer unix.Close(pidfd)
	fd, err := unix.PidfdGetfd(pidfd, pidfd, 0)
	if err != nil {
		return fmt.Errorf("pidfd_getfd: %w", err)
	}
	return unix.Close(fd)
}

// probeRealtime makes a thread real-time for an instant.
func probeRealtime() error {
	return thread.Own(func() error { return setScheduler(unix.SCHED_FIFO|schedResetOnFork, 1) })
}

const schedResetOnFork = 0x40000000
