package seccomp

import (
	"testing"

	"golang.org/x/sys/unix"
)

// What the policy means, call by call: the reader's view of it.
func TestSandbox(t *testing.T) {
	p, _ := sandbox(t)
	eperm, enosys := Errno(unix.EPERM), Errno(unix.ENOSYS)
	family, protocol, notty := Errno(unix.EAFNOSUPPORT), Errno(unix.EPROTONOSUPPORT), Errno(unix.ENOTTY)
	for _, tt := range []struct {
		call string
		args [6]uint64
		want Action
	}{
		{"read", [6]uint64{}, Allow},
		{"execve", [6]uint64{}, Allow},
		{"ptrace", [6]uint64{}, Allow},
		{"chroot", [6]uint64{}, Allow},
		{"seccomp", [6]uint64{}, Allow},
		{"mount", [6]uint64{}, eperm},
		{"fsopen", [6]uint64{}, eperm},
		{"unshare", [6]uint64{}, eperm},
		{"setns", [6]uint64{}, eperm},
		{"bpf", [6]uint64{}, eperm},
		{"keyctl", [6]uint64{}, eperm},
		{"add_key", [6]uint64{}, eperm},
		{"perf_event_open", [6]uint64{}, eperm},
		{"open_by_handle_at", [6]uint64{}, eperm},
		{"init_module", [6]uint64{}, eperm},
		{"reboot", [6]uint64{}, eperm},
		{"sethostname", [6]uint64{}, eperm},
		{"pidfd_getfd", [6]uint64{}, eperm},
		{"io_uring_setup", [6]uint64{}, enosys},
		{"io_setup", [6]uint64{}, enosys},
		{"userfaultfd", [6]uint64{}, enosys},
		{"memfd_secret", [6]uint64{}, enosys},
		{"modify_ldt", [6]uint64{}, enosys},
		{"landlock_create_ruleset", [6]uint64{}, enosys},
		{"landlock_restrict_self", [6]uint64{}, enosys},
		{"clone3", [6]uint64{}, enosys},
		{"rseq_slice_yield", [6]uint64{}, enosys},
		{"clone", [6]uint64{unix.CLONE_VM | unix.CLONE_THREAD | unix.CLONE_SIGHAND}, Allow},
		{"clone", [6]uint64{uint64(unix.SIGCHLD)}, Allow},
		{"clone", [6]uint64{unix.CLONE_NEWUSER | uint64(unix.SIGCHLD)}, eperm},
		{"clone", [6]uint64{1<<40 | unix.CLONE_NEWNS}, eperm},
		{"socket", [6]uint64{unix.AF_UNIX, unix.SOCK_STREAM}, Allow},
		{"socket", [6]uint64{unix.AF_INET, unix.SOCK_STREAM}, Allow},
		{"socket", [6]uint64{unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6}, Allow},
		{"socket", [6]uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP}, protocol},
		{"socket", [6]uint64{unix.AF_INET, unix.SOCK_STREAM, 1<<32 | unix.IPPROTO_SCTP}, protocol},
		{"socket", [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}, Allow},
		{"socket", [6]uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER}, protocol},
		{"socket", [6]uint64{unix.AF_PACKET}, family},
		{"socket", [6]uint64{unix.AF_VSOCK}, family},
		{"socket", [6]uint64{unix.AF_ALG}, family},
		{"socket", [6]uint64{1<<32 | unix.AF_VSOCK}, family},
		{"socketpair", [6]uint64{unix.AF_UNIX}, Allow},
		{"socketpair", [6]uint64{unix.AF_TIPC}, family},
		{"ioctl", [6]uint64{0, unix.TCGETS}, Allow},
		{"ioctl", [6]uint64{0, unix.TIOCSCTTY}, Allow},
		{"ioctl", [6]uint64{0, unix.TIOCSTI}, eperm},
		{"ioctl", [6]uint64{0, 7<<32 | unix.TIOCSTI}, eperm},
		{"ioctl", [6]uint64{0, unix.TIOCLINUX}, eperm},
		{"ioctl", [6]uint64{0, 0xc0c0586d}, notty}, // XFS_IOC_SWAPEXT
		{"ioctl", [6]uint64{0, 0x5000940e}, notty}, // BTRFS_IOC_SNAP_CREATE or near
		{"ioctl", [6]uint64{0, unix.FICLONE}, Allow},
		{"ioctl", [6]uint64{0, 0xffffffff00000000 | unix.FICLONERANGE}, Allow},
		{"ioctl", [6]uint64{0, unix.FS_IOC_GETFLAGS}, Allow},
		{"ioctl", [6]uint64{0, 0xc028660f}, notty}, // EXT4_IOC_MOVE_EXT
		{"personality", [6]uint64{0}, Allow},
		{"personality", [6]uint64{0xffffffff}, Allow},
		{"personality", [6]uint64{0x40000}, eperm},
		{"arch_prctl", [6]uint64{0x1002}, Allow}, // ARCH_SET_FS
		{"arch_prctl", [6]uint64{1<<32 | 0x5001}, Errno(unix.EOPNOTSUPP)},
	} {
		nr, ok := numbers[tt.call]
		if !ok {
			t.Errorf("%s has no number", tt.call)
			continue
		}
		if got := p.Decide(Data{NR: uint32(nr), Arch: p.Arch, Args: tt.args}); got != tt.want {
			t.Errorf("%s%#x: %v, want %v", tt.call, tt.args, got, tt.want)
		}
	}
	if got := p.Decide(Data{NR: 0, Arch: unix.AUDIT_ARCH_I386}); got != Kill {
		t.Errorf("int 0x80: %v", got)
	}
	if got := p.Decide(Data{NR: 1 << 30, Arch: p.Arch}); got != enosys {
		t.Errorf("x32: %v", got)
	}
}

// A sandbox that is given every capability still has none of these.
func TestCapabilitiesOpenNoForbiddenCall(t *testing.T) {
	p, err := Sandbox([]string{"CAP_SYS_ADMIN", "CAP_SYS_MODULE", "CAP_SYS_PTRACE", "CAP_SYS_BOOT", "CAP_SYS_RAWIO",
		"CAP_BPF", "CAP_PERFMON", "CAP_DAC_READ_SEARCH", "CAP_SYS_TTY_CONFIG", "CAP_SYSLOG", "CAP_SYS_PACCT"})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range append(append([]string{}, never...), missing...) {
		nr, ok := numbers[name]
		if !ok {
			continue
		}
		if got := p.Decide(Data{NR: uint32(nr), Arch: p.Arch}); got == Allow {
			t.Errorf("%s is allowed", name)
		}
	}
}
