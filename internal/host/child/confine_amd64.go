package child

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/confine/seccomp"
)

// withoutPower is the filter.
var withoutPower = sync.OnceValues(func() ([]unix.SockFilter, error) {
	p := seccomp.Policy{
		Arch: unix.AUDIT_ARCH_X86_64, Foreign: seccomp.Kill, Calls: map[int]seccomp.Call{},
		Known: unix.SYS_FUTEX_REQUEUE, Default: seccomp.Allow, Newer: seccomp.Errno(unix.ENOSYS),
	}
	for _, n := range []int{
		unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_KCMP, unix.SYS_PIDFD_GETFD,
		unix.SYS_PROCESS_MADVISE, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD, unix.SYS_BPF,
		unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE,
		unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR,
		unix.SYS_SETNS, unix.SYS_UNSHARE,
		unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD,
		unix.SYS_REBOOT, unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_ACCT, unix.SYS_QUOTACTL, unix.SYS_SYSLOG,
		unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_ADJTIMEX, unix.SYS_CLOCK_ADJTIME,
		unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME, unix.SYS_VHANGUP, unix.SYS_IOPL, unix.SYS_IOPERM,
		unix.SYS_SOCKET, unix.SYS_CONNECT, unix.SYS_BIND, unix.SYS_LISTEN,
		unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY,
		unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER, unix.SYS_FANOTIFY_INIT,
	} {
		p.Calls[n] = seccomp.Call{Else: seccomp.Errno(unix.EPERM)}
	}
	program, err := p.Compile()
	if err != nil {
		return nil, fmt.Errorf("compile a filter: %w", err)
	}
	return program, nil
})
