package confine

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/tracee"
)

// Files and directories of proc and sysfs that tell about, or change, the
// whole machine. They follow moby's default with what newer kernels have.
var (
	hidden = []string{
		"proc/acpi", "proc/asound", "proc/interrupts", "proc/kcore", "proc/keys", "proc/key-users",
		"proc/kpagecgroup", "proc/kpagecount", "proc/kpageflags", "proc/latency_stats", "proc/sched_debug",
		"proc/scsi", "proc/timer_list", "proc/timer_stats", "proc/vmallocinfo",
		"sys/devices/virtual/powercap", "sys/firmware", "sys/kernel/btf", "sys/kernel/security", "sys/kernel/debug",
		"sys/kernel/tracing", "sys/fs/pstore",
	}
	readOnly = []string{"proc/bus", "proc/fs", "proc/irq", "proc/sys", "proc/sysrq-trigger"}
)

// masks are the paths that this kernel has.
type masks struct {
	files, dirs, readOnly []string
}

// findMasks looks the paths up in the host's own proc and sysfs, which have
// the same entries: a mount that fails later is an error then and not
// perhaps a path that is missing.
func findMasks() (m masks) {
	for _, p := range hidden {
		switch st, err := os.Lstat("/" + p); {
		case err != nil:
		case st.IsDir():
			m.dirs = append(m.dirs, p)
		default:
			m.files = append(m.files, p)
		}
	}
	for _, p := range readOnly {
		if _, err := os.Lstat("/" + p); err == nil {
			m.readOnly = append(m.readOnly, p)
		}
	}
	return m
}

// Mask queues the mounts that hide and protect parts of proc and sysfs, below
// the working directory, which is the new root with proc, sys and dev
// mounted. Root inside cannot undo them: it has no CAP_SYS_ADMIN.
func (w *Walls) Mask(b *tracee.Batch) {
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	for _, p := range w.masks.files {
		b.Call(unix.SYS_MOUNT, "dev/null", p, nil, unix.MS_BIND, nil)
	}
	for _, p := range w.masks.dirs {
		b.Call(unix.SYS_MOUNT, "tmpfs", p, "tmpfs", flags|unix.MS_RDONLY, "size=0k,mode=0555")
	}
	for _, p := range w.masks.readOnly {
		b.Call(unix.SYS_MOUNT, p, p, nil, unix.MS_BIND|unix.MS_REC, nil)
		b.Call(unix.SYS_MOUNT, nil, p, nil, flags|unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, nil)
	}
}
