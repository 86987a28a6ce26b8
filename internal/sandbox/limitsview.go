package sandbox

import (
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/cgroup"
	"github.com/sandtree/sandtree/internal/linux/mount"
	"github.com/sandtree/sandtree/internal/tracee"
)

// limitsView shows an incarnation its own cgroup, so that runtimes inside size
// themselves by it: detached, read-only mounts of the group's directories.
// Their numbers in PID 1 are first and those after it, in order.
type limitsView struct {
	paths []string // under /sys/fs/cgroup; a single "" is that directory itself
	fds   []int
	links map[string]string // name to target
}

const cgroupDir = "/sys/fs/cgroup"

func openLimitsView(g *cgroup.Group) (v limitsView, err error) {
	for _, bind := range g.View() {
		fd, err := mount.Clone(unix.AT_FDCWD, bind.HostPath)
		if err != nil {
			v.close()
			return v, err
		}
		v.fds = append(v.fds, fd)
		v.paths = append(v.paths, strings.TrimPrefix(strings.TrimPrefix(bind.InsidePath, cgroupDir), "/"))
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC}
		if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
			v.close()
			return v, &mount.Error{Call: "mount_setattr", What: bind.HostPath, Err: err}
		}
	}
	v.links = map[string]string{}
	for link, target := range g.ViewLinks() {
		v.links[path.Base(link)] = target
	}
	return v, nil
}

func (v *limitsView) close() {
	for _, fd := range v.fds {
		unix.Close(fd)
	}
	v.fds = nil
}

// queue attaches the view below the working directory, the new root.
func (v *limitsView) queue(b *tracee.Batch, first int) {
	const dir = "sys/fs/cgroup"
	if !slices.Equal(v.paths, []string{""}) {
		b.Call(unix.SYS_MOUNT, "cgroup", dir, "tmpfs", noAll, "mode=755,size=64k")
		for _, p := range v.paths {
			b.Call(unix.SYS_MKDIR, dir+"/"+p, 0o755)
		}
		for name, target := range v.links {
			b.Call(unix.SYS_SYMLINK, target, dir+"/"+name)
		}
	}
	for i, p := range v.paths {
		b.Call(unix.SYS_MOVE_MOUNT, first+i, "", unix.AT_FDCWD, path.Join(dir, p), unix.MOVE_MOUNT_F_EMPTY_PATH)
	}
	if !slices.Equal(v.paths, []string{""}) {
		b.Call(unix.SYS_MOUNT, 0, dir, 0, noAll|unix.MS_REMOUNT|unix.MS_RDONLY, 0)
	}
}
