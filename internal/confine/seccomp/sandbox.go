package seccomp

import (
	"golang.org/x/sys/unix"
)

// Sandbox is the policy for processes of a sandbox whose capabilities are
// bounded by the given ones ("CAP_CHOWN"). It is moby's default profile for
// them with these differences:
//
//   - Always refused, whatever the capabilities: namespaces, mounts, io_uring,
//     userfaultfd, keyrings, BPF, perf events, file handles, kernel modules.
//   - Sockets are of the unix, IPv4, IPv6 and netlink families. Netlink is
//     routes, socket diagnosis and device events; transports are those that a
//     checkpoint can keep (no SCTP, DCCP, MPTCP, SMC). Errors are those of a
//     kernel without the protocol, upon which programs fall back.
//   - ioctl refuses what reaches past the caller's own files and terminals.
//   - State that no checkpoint can keep does not come into being: secret
//     memory, shadow stacks, local descriptor tables, the kernel's asynchronous
//     I/O (io_setup), which does not tell what is still on its way (databases
//     do their own with threads then), and Landlock, of which nothing tells that a
//     process has restricted itself: a restored one would be free again.
//   - Calls newer than the profile do not exist (ENOSYS), nor does clone3,
//     whose flags a filter cannot see; C libraries fall back to clone.
//   - 32-bit calls (int 0x80) end the process. x32 calls do not exist.
func Sandbox(capabilities []string) (Policy, error) {
	p, err := base(capabilities)
	if err != nil {
		return Policy{}, err
	}
	for _, name := range never {
		p.set(name, Call{Else: Errno(unix.EPERM)})
	}
	for _, name := range missing {
		p.set(name, Call{Else: Errno(unix.ENOSYS)})
	}
	p.set("clone", Call{
		Rules: []Rule{{Args: []Arg{{Index: 0, Op: Equal, Mask: namespaces}}, Action: Allow}},
		Else:  Errno(unix.EPERM),
	})
	sockets(&p)
	ioctls(&p)
	archRules(&p)
	return p, nil
}

// namespaces are the flags of clone that make namespaces. CLONE_NEWTIME is
// not among them: clone takes its bit for a part of the exit signal.
const namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWUSER |
	unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWCGROUP

// never are calls that moby allows with capabilities that a sandbox might be
// given one day, and that we do not.
var never = []string{
	"unshare", "setns",
	"mount", "umount2", "pivot_root", "mount_setattr", "move_mount", "open_tree",
	"fsconfig", "fsmount", "fsopen", "fspick",
	"bpf", "perf_event_open", "open_by_handle_at", "lookup_dcookie",
	"add_key", "keyctl", "request_key",
	"init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot",
	"iopl", "ioperm", "swapon", "swapoff", "acct", "quotactl", "quotactl_fd", "nfsservctl",
	"pidfd_getfd", "kcmp", "fanotify_init", "vhangup", "syslog",
}

// missing are calls that programs use where they exist and do without where
// not.
var missing = []string{
	"clone3",
	"io_uring_setup", "io_uring_enter", "io_uring_register", "io_setup",
	"userfaultfd",
	"memfd_secret", "map_shadow_stack",
	"landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self",
}

func sockets(p *Policy) {
	family := func(f uint32) Arg { return Low(0, f) }
	noFamily := Errno(unix.EAFNOSUPPORT)
	noProtocol := Errno(unix.EPROTONOSUPPORT)
	var rules []Rule
	for _, f := range []uint32{unix.AF_INET, unix.AF_INET6} {
		for _, protocol := range []uint32{unix.IPPROTO_SCTP, unix.IPPROTO_DCCP, unix.IPPROTO_MPTCP, ipprotoSMC} {
			rules = append(rules, Rule{Args: []Arg{family(f), Low(2, protocol)}, Action: noProtocol})
		}
		rules = append(rules, Rule{Args: []Arg{Is(0, uint64(f))}, Action: Allow})
	}
	rules = append(rules, Rule{Args: []Arg{Is(0, unix.AF_UNIX)}, Action: Allow})
	for _, protocol := range []uint64{unix.NETLINK_ROUTE, unix.NETLINK_SOCK_DIAG, unix.NETLINK_KOBJECT_UEVENT} {
		rules = append(rules, Rule{Args: []Arg{Is(0, unix.AF_NETLINK), Is(2, protocol)}, Action: Allow})
	}
	rules = append(rules, Rule{Args: []Arg{family(unix.AF_NETLINK)}, Action: noProtocol})
	p.set("socket", Call{Rules: rules, Else: noFamily})
	p.set("socketpair", Call{
		Rules: []Rule{{Args: []Arg{Is(0, unix.AF_UNIX)}, Action: Allow}},
		Else:  noFamily,
	})
}

// ipprotoSMC is IPPROTO_SMC of linux/in.h (6.11).
const ipprotoSMC = 256

// Magic numbers of ioctl are the second byte of the request.
func ioctlOf(magic byte) Arg {
	return Arg{Index: 1, Op: Equal, Mask: 0xff00, Value: uint64(magic) << 8}
}

func ioctls(p *Policy) {
	// Later calls of refuse come first in the list. ENOTTY is what overlayfs
	// itself answers for most of these.
	for _, magic := range []byte{
		0x94, // btrfs: snapshots, send, quota of the pool
		'X',  // XFS and generic file systems: swapping extents, freezing, trimming
		0xaa, // userfaultfd
		0xae, // KVM
		0x12, // block devices, and file system ids
		'f',  // ext4 and generic: moving extents, encryption, resizing; see kept
	} {
		p.refuse("ioctl", Errno(unix.ENOTTY), ioctlOf(magic))
	}
	for _, kept := range []uint32{
		unix.FICLONE, unix.FICLONERANGE, unix.FIDEDUPERANGE, // cp --reflink
		unix.FS_IOC_GETFLAGS, unix.FS_IOC_SETFLAGS, // lsattr, chattr
		0x801c581f, 0x401c5820, // FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR
		0xc020660b, // FS_IOC_FIEMAP
	} {
		p.prefer("ioctl", Rule{Args: []Arg{Low(1, kept)}, Action: Allow})
	}
	for _, request := range []uint32{
		unix.TIOCSTI,   // types into the terminal of whoever started us
		unix.TIOCLINUX, // pastes into a console
		unix.TIOCCONS,  // takes the kernel's console messages
		unix.TIOCSETD,  // loads line disciplines
	} {
		p.refuse("ioctl", Errno(unix.EPERM), Low(1, request))
	}
}

// set replaces the treatment of a call.
func (p *Policy) set(name string, c Call) {
	if nr, ok := numbers[name]; ok {
		p.Calls[nr] = c
	}
}

// refuse puts a refusal before a call's other rules.
func (p *Policy) refuse(name string, a Action, args ...Arg) {
	p.prefer(name, Rule{Args: args, Action: a})
}

// prefer puts a rule before a call's other rules.
func (p *Policy) prefer(name string, r Rule) {
	if nr, ok := numbers[name]; ok {
		c, ok := p.Calls[nr]
		if !ok {
			c.Else = p.Default
		}
		c.Rules = append([]Rule{r}, c.Rules...)
		p.Calls[nr] = c
	}
}
