package feature

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/cgroup"
)

var groupFeatures = []Feature{
	{
		Name: "cgroup v2", Kernel: "5.14", Required: true,
		For:     "sandboxes are frozen, killed whole and measured (cgroup.freeze, cgroup.kill); v1 controllers may stay beside it",
		Without: "nothing runs",
		Help:    "mount -t cgroup2 none /sys/fs/cgroup/unified",
		probe:   probeGroup,
	},
	controller(cgroup.Memory, "a sandbox is killed when it exceeds its memory", "limits on memory are refused"),
	controller(cgroup.CPU, "a sandbox gets no more CPU time than its limit", "limits on CPU time are refused"),
	controller(cgroup.PIDs, "a fork bomb ends at its sandbox's limit", "limits on processes are refused"),
	{
		Name: "cheap cgroup moves", Kernel: "6.0",
		For:     "processes are moved into v1 hierarchies in 0.05 ms (favordynmods)",
		Without: "10 ms for each process started, on machines with v1 controllers",
		Help:    "CONFIG_CGROUPS with named v1 hierarchies, or mount cgroup2 with favordynmods",
		probe:   probeDynmods,
	},
	{
		Name: "cgroup device programs", Kernel: "4.15",
		For:     "a second wall before the host's devices",
		Without: "the mount option nodev and the user namespace alone keep them closed",
		Help:    "CONFIG_CGROUP_BPF",
		probe: func() error {
			err := features.HaveProgramType(ebpf.CGroupDevice)
			if errors.Is(err, ebpf.ErrNotSupported) {
				err = fmt.Errorf("%w: %w", err, errAbsent)
			}
			return err
		},
	},
	{
		Name: "pressure", Kernel: "4.20",
		For:     "stats tell how much a sandbox waits for CPU, memory and disk",
		Without: "these figures are zero",
		Help:    "psi=1 on the kernel's command line",
		probe: func() error {
			b, err := os.ReadFile("/proc/pressure/cpu")
			if err == nil && len(b) == 0 {
				err = errAbsent
			}
			return err
		},
	},
}

func controller(c cgroup.Controller, what, without string) Feature {
	return Feature{
		Name: string(c) + " controller", Kernel: "4.15",
		For: what, Without: without,
		Help: "cgroup_enable=" + string(c) + " on the kernel's command line; in a container, delegate the controller",
		probe: func() error {
			l, err := cgroup.Detect()
			if err == nil && l.Version(c) == 0 {
				err = fmt.Errorf("no hierarchy has it: %w", errAbsent)
			}
			return err
		},
	}
}

// probeGroup makes an empty group and looks for its files.
func probeGroup() error {
	top, err := unifiedMount()
	if err != nil {
		return err
	}
	dir := filepath.Join(top, fmt.Sprintf("sandtree-probe-%d", os.Getpid()))
	if err := unix.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", dir, err)
	}
	defer func() { _ = unix.Rmdir(dir) }()
	for _, f := range []string{"cgroup.freeze", "cgroup.kill", "cgroup.events"} {
		if _, err := os.Stat(filepath.Join(dir, f)); err != nil {
			return err
		}
	}
	return nil
}

// probeDynmods asks whether the option is known, and mounts nothing: since
// 6.18 a mount would change the machine until it boots again.
func probeDynmods() error {
	return fsContext("cgroup", func(fs int) error {
		for _, flag := range []string{"none", "favordynmods"} {
			if err := unix.FsconfigSetFlag(fs, flag); err != nil {
				return fmt.Errorf("cgroup option %s: %w", flag, err)
			}
		}
		return nil
	})
}

// fsContext opens a file system's context; ENODEV tells that the kernel does
// not have it, after trying to load it.
func fsContext(name string, f func(fs int) error) error {
	fs, err := unix.Fsopen(name, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("fsopen %s: %w", name, err)
	}
	defer unix.Close(fs)
	return f(fs)
}
