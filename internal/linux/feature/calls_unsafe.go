package feature

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

func setScheduler(policy, priority int32) error {
	_, _, e := unix.Syscall(unix.SYS_SCHED_SETSCHEDULER, 0, uintptr(policy), uintptr(unsafe.Pointer(&priority)))
	return call("sched_setscheduler", e)
}

// probeSetTID asks for a child with number 1, which is taken: a kernel that
// knows the field says so and makes none.
func probeSetTID() error {
	tid := int32(1)
	args := struct {
		flags, pidfd, childTID, parentTID, exitSignal, stack, stackSize, tls, setTID, setTIDSize, cgroup uint64
	}{exitSignal: uint64(unix.SIGCHLD), setTID: uint64(uintptr(unsafe.Pointer(&tid))), setTIDSize: 1}
	_, _, e := unix.RawSyscall(unix.SYS_CLONE3, uintptr(unsafe.Pointer(&args)), unsafe.Sizeof(args), 0)
	if e == unix.EEXIST {
		return nil
	}
	return call("clone3 with set_tid", e)
}

func probeSeccomp() error {
	action := uint32(unix.SECCOMP_RET_KILL_PROCESS)
	_, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_GET_ACTION_AVAIL, 0, uintptr(unsafe.Pointer(&action)))
	return call("seccomp", e)
}

// ioctl makes a request with a structure that it reads and writes.
func ioctl[T any](fd int, request uintptr, arg *T) error {
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(arg)))
	return call("ioctl", e)
}

// addressOf is where memory from mmap lies.
func addressOf(p []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(p))) }

// processVMRead copies our own memory by way of process_vm_readv.
func processVMRead(pid int, to, from []byte) error {
	local := []unix.Iovec{{Base: &to[0], Len: uint64(len(to))}}
	remote := []unix.RemoteIovec{{Base: addressOf(from), Len: len(from)}}
	_, err := unix.ProcessVMReadv(pid, local, remote, 0)
	return err
}

func regionAddress(r *[1]struct{ start, end, categories uint64 }) uintptr {
	return uintptr(unsafe.Pointer(r))
}
