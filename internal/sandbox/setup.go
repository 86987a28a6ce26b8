package sandbox

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/confine"
	"github.com/sandtree/sandtree/internal/tracee"
)

const openHowSize = 24 // struct open_how, openat2(2)

const noAll = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC

// Numbers of the descriptors that PID 1 starts with; the limits view follows.
const (
	devFD = iota
	viewFD
)

// rootFD is the number of the root when it comes.
const rootFD = 0

// queueIdentity makes PID 1 the root of its user namespace, and nobody's child
// as far as terminals and keys go. It comes after the id maps are written and
// after PID 1 was moved into cgroups: their view is rooted where it is now.
func queueIdentity(b *tracee.Batch) {
	b.Call(unix.SYS_SETSID)
	b.Call(unix.SYS_SETGROUPS, 0, 0)
	b.Call(unix.SYS_SETRESGID, 0, 0, 0)
	b.Call(unix.SYS_SETRESUID, 0, 0, 0)
	confine.Keyring(b)
	b.Call(unix.SYS_UNSHARE, unix.CLONE_NEWCGROUP|unix.CLONE_NEWTIME)
	b.Call(unix.SYS_UMASK, 0)
}

// queueStage makes all that will stand below the root, in a directory of the
// seed's.
func queueStage(b *tracee.Batch, view *limitsView, walls *confine.Walls) {
	b.Call(unix.SYS_CHDIR, stageDir)
	b.Call(unix.SYS_MOVE_MOUNT, devFD, "", unix.AT_FDCWD, "dev", unix.MOVE_MOUNT_F_EMPTY_PATH)
	b.Call(unix.SYS_MOUNT, "proc", "proc", "proc", noAll, 0)
	b.Call(unix.SYS_MOUNT, "sysfs", "sys", "sysfs", noAll|unix.MS_RDONLY, 0)
	view.queue(b, viewFD)
	queueEmpty(b)
	b.Call(unix.SYS_MOUNT, "devpts", "dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, fmt.Sprintf("newinstance,ptmxmode=0666,mode=0620,gid=5,max=%d", maxTerminals))
	b.Call(unix.SYS_MOUNT, "shm", "dev/shm", "tmpfs", noAll, fmt.Sprintf("mode=1777,size=%d", defaultShmBytes))
	b.Call(unix.SYS_MOUNT, "mqueue", "dev/mqueue", "mqueue", noAll, 0)
	walls.Mask(b)
}

// queueRoot attaches the root, and to it what stands on the stage. Nothing else
// runs there yet, so what it finds stays as it is.
func queueRoot(b *tracee.Batch) {
	b.Call(unix.SYS_UMASK, 0)
	b.Call(unix.SYS_MOVE_MOUNT, rootFD, "", unix.AT_FDCWD, "/root", unix.MOVE_MOUNT_F_EMPTY_PATH)
	b.Call(unix.SYS_CHDIR, "/root")
	for _, d := range staged {
		b.Try(unix.SYS_MKDIR, d, 0o755)
		// A link of the image's would lead the mount elsewhere.
		how := b.PutWords(unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0, unix.RESOLVE_NO_SYMLINKS|unix.RESOLVE_BENEATH)
		fd := b.Call(unix.SYS_OPENAT2, unix.AT_FDCWD, d, how, openHowSize)
		b.Call(unix.SYS_CLOSE, fd)
		b.Call(unix.SYS_MOVE_MOUNT, unix.AT_FDCWD, stageDir+"/"+d, unix.AT_FDCWD, d, 0)
	}
}

// queuePivot moves into the root that the working directory is.
func queuePivot(b *tracee.Batch) {
	b.Call(unix.SYS_PIVOT_ROOT, ".", ".")
	b.Call(unix.SYS_UMOUNT2, ".", unix.MNT_DETACH)
	b.Call(unix.SYS_CHDIR, "/")
}

// queueLoopback brings the network namespace's lo up (netdevice(7)).
func queueLoopback(b *tracee.Batch) {
	request := make([]byte, 40) // struct ifreq
	copy(request, "lo")
	request[unix.IFNAMSIZ] = unix.IFF_UP
	s := b.Call(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	b.Call(unix.SYS_IOCTL, s, unix.SIOCSIFFLAGS, request)
	b.Call(unix.SYS_CLOSE, s)
}

func queueHostname(b *tracee.Batch, name string) {
	b.Call(unix.SYS_SETHOSTNAME, name, len(name))
}

// queueClosed names PID 1 and closes its memory to everybody inside. It comes
// last: a change of credentials may open it again (prctl(2), suid_dumpable).
func queueClosed(b *tracee.Batch) {
	b.Call(unix.SYS_PRCTL, unix.PR_SET_NAME, "init")
	confine.Undumpable(b)
}

// queueDefaultFiles makes files that programs expect and an image may lack.
func queueDefaultFiles(b *tracee.Batch, hostname string) {
	b.Try(unix.SYS_MKDIR, "/etc", 0o755)
	for _, f := range []struct{ path, text string }{
		{"/etc/hostname", hostname + "\n"},
		{"/etc/hosts", "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\t" + hostname + "\n"},
		{"/etc/resolv.conf", "# nothing answers: this sandbox has no network\n"},
	} {
		// EXCL: what the image has stays, and no link is followed.
		fd := b.Try(unix.SYS_OPEN, f.path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
		b.Try(unix.SYS_WRITE, fd, f.text, len(f.text))
		b.Try(unix.SYS_CLOSE, fd)
	}
}
