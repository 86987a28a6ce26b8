// Package ptrace holds the requests of ptrace(2) that sandtree uses, one
// function each. A tracee belongs to the OS thread that seized it: callers lock
// their goroutine to its thread.
//
// Requests on threads that ended meanwhile fail with ESRCH.
package ptrace

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Options for [Seize], beyond those of package unix.
const (
	// OptSuspendSeccomp lets a tracee's filter sleep while it is traced
	// (Linux 4.3; needs CAP_SYS_ADMIN and a tracer without a filter).
	OptSuspendSeccomp = 1 << 21
	// OptExitKill ends the tracee when its tracer ends.
	OptExitKill = unix.PTRACE_O_EXITKILL
)

// Register sets of PTRACE_GETREGSET (elf.h).
const (
	regsetGeneral = 1     // NT_PRSTATUS
	regsetXState  = 0x202 // NT_X86_XSTATE
)

const (
	requestGetSigmask = 0x420a
	requestSetSigmask = 0x420b
	requestRseqConfig = 0x420f
	requestPeekSig    = 0x4209
)

// call passes data as a pointer: a uintptr to a stack address would go stale
// if the stack moved before the call.
func call(req uintptr, tid int, addr uintptr, data unsafe.Pointer) error {
	if _, _, e := unix.RawSyscall6(unix.SYS_PTRACE, req, uintptr(tid), addr, uintptr(data), 0, 0); e != 0 {
		return e
	}
	return nil
}

// Seize attaches to a running thread without stopping it. It waits for an execve(2) of the
// thread's process that is under way, and that may wait for the caller's process: for a wait
// for threads which it traces and which the execve has killed. So this is not a raw system
// call, as the others here are: the runtime could not stop the world meanwhile, for a
// garbage collection say, and while it tries to nothing else of the process runs.
func Seize(tid int, options uintptr) error {
	if _, _, e := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(tid), 0, options, 0, 0); e != 0 {
		return e
	}
	return nil
}

// SetOptions gives a stopped thread other options than those of [Seize].
func SetOptions(tid int, options uintptr) error {
	if _, _, e := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_SETOPTIONS, uintptr(tid), 0, options, 0, 0); e != 0 {
		return e
	}
	return nil
}

// Interrupt asks a seized thread to stop; [Wait] tells when it has. A thread that is about to
// replace its program (execve(2)) forgets it where its process has other threads, since the
// summer of 2026 ("signal: clear JOBCTL_PENDING_MASK for caller in zap_other_threads()", in
// stable kernels, too; seen in 6.18.44). Asking one again that stands has it stand once more
// when it is continued.
func Interrupt(tid int) error { return call(unix.PTRACE_INTERRUPT, tid, 0, nil) }

// Continue lets a stopped thread run, delivering sig if it is not 0.
func Continue(tid int, sig int) error {
	if _, _, e := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_CONT, uintptr(tid), 0, uintptr(sig), 0, 0); e != 0 {
		return e
	}
	return nil
}

// SingleStep lets a stopped thread run one instruction.
func SingleStep(tid int) error { return call(unix.PTRACE_SINGLESTEP, tid, 0, nil) }

// Listen leaves a thread in a job-control stop, but able to report events.
func Listen(tid int) error { return call(unix.PTRACE_LISTEN, tid, 0, nil) }

// Detach lets a stopped thread go, delivering sig if it is not 0.
func Detach(tid int, sig int) error {
	if _, _, e := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_DETACH, uintptr(tid), 0, uintptr(sig), 0, 0); e != 0 {
		return e
	}
	return nil
}

// EventMessage returns what belongs to the last event: a clone's new thread, in
// the numbers of the tracer's namespace.
func EventMessage(tid int) (int, error) {
	var msg uint64
	err := call(unix.PTRACE_GETEVENTMSG, tid, 0, unsafe.Pointer(&msg))
	return int(msg), err
}

// GetRegs reads the general registers.
func GetRegs(tid int, r *unix.PtraceRegs) error {
	iov := unix.Iovec{Base: (*byte)(unsafe.Pointer(r)), Len: uint64(unsafe.Sizeof(*r))}
	return call(unix.PTRACE_GETREGSET, tid, regsetGeneral, unsafe.Pointer(&iov))
}

// SetRegs writes the general registers.
func SetRegs(tid int, r *unix.PtraceRegs) error {
	iov := unix.Iovec{Base: (*byte)(unsafe.Pointer(r)), Len: uint64(unsafe.Sizeof(*r))}
	return call(unix.PTRACE_SETREGSET, tid, regsetGeneral, unsafe.Pointer(&iov))
}

// GetXState reads the extended state (FPU, SSE, AVX, protection keys) into b
// and returns its length.
func GetXState(tid int, b []byte) (int, error) {
	iov := unix.Iovec{Base: &b[0], Len: uint64(len(b))}
	err := call(unix.PTRACE_GETREGSET, tid, regsetXState, unsafe.Pointer(&iov))
	return int(iov.Len), err
}

// SetXState writes the extended state.
func SetXState(tid int, b []byte) error {
	iov := unix.Iovec{Base: &b[0], Len: uint64(len(b))}
	return call(unix.PTRACE_SETREGSET, tid, regsetXState, unsafe.Pointer(&iov))
}

// GetSigmask reads the mask of blocked signals.
func GetSigmask(tid int) (mask uint64, err error) {
	err = call(requestGetSigmask, tid, 8, unsafe.Pointer(&mask))
	return mask, err
}

// SetSigmask writes the mask of blocked signals.
func SetSigmask(tid int, mask uint64) error {
	return call(requestSetSigmask, tid, 8, unsafe.Pointer(&mask))
}

// RseqConfig is a thread's registration of restartable sequences, struct
// ptrace_rseq_configuration (Linux 5.13). Pointer is 0 without one.
type RseqConfig struct {
	Pointer   uint64
	Size      uint32
	Signature uint32
	Flags     uint32
	_         uint32
}

// GetRseq reads a thread's registration of restartable sequences.
func GetRseq(tid int) (c RseqConfig, err error) {
	err = call(requestRseqConfig, tid, unsafe.Sizeof(c), unsafe.Pointer(&c))
	return c, err
}

// SiginfoSize is the size of a siginfo_t.
const SiginfoSize = 128

// PeekPending reads pending signals without taking them: those of the whole
// process if shared, else the thread's, from the one at offset on. It fills out with
// a siginfo_t each and returns how many. Only none means that there are no more: the
// kernel stops early when the caller has a signal pending itself. It does not
// allocate.
func PeekPending(tid int, shared bool, offset int, out [][SiginfoSize]byte) (int, error) {
	args := struct {
		off   uint64
		flags uint32
		nr    int32
	}{off: uint64(offset), nr: int32(len(out))}
	if shared {
		args.flags = 1 // PTRACE_PEEKSIGINFO_SHARED
	}
	n, _, e := unix.RawSyscall6(unix.SYS_PTRACE, requestPeekSig, uintptr(tid), uintptr(unsafe.Pointer(&args)), uintptr(unsafe.Pointer(&out[0])), 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(n), nil
}

// Status is the status of a stopped or ended thread.
type Status uint32

// Stopped reports whether the thread stands, as opposed to having ended.
func (s Status) Stopped() bool { return s&0xff == 0x7f }

// Signal is that of the stop.
func (s Status) Signal() int { return int(s >> 8 & 0xff) }

// Event is the PTRACE_EVENT_ of the stop, or 0.
func (s Status) Event() int { return int(s >> 16) }

// Wait waits for the next change of one thread.
func Wait(tid int) (Status, error) {
	var st uint32
	for {
		r, _, e := unix.RawSyscall6(unix.SYS_WAIT4, uintptr(tid), uintptr(unsafe.Pointer(&st)), unix.WALL, 0, 0, 0)
		switch {
		case e == unix.EINTR:
		case e != 0:
			return 0, e
		case int(r) == tid:
			return Status(st), nil
		}
	}
}

// WaitInterruptible is [Wait] that gives up with EINTR when a signal comes.
func WaitInterruptible(tid int) (Status, error) {
	var st uint32
	r, _, e := unix.RawSyscall6(unix.SYS_WAIT4, uintptr(tid), uintptr(unsafe.Pointer(&st)), unix.WALL, 0, 0, 0)
	if e != 0 {
		return 0, e
	}
	if int(r) != tid {
		return 0, unix.ECHILD
	}
	return Status(st), nil
}

// TryWait is [Wait] without waiting; ok is false if nothing has changed.
func TryWait(tid int) (s Status, ok bool, err error) {
	var st uint32
	r, _, e := unix.RawSyscall6(unix.SYS_WAIT4, uintptr(tid), uintptr(unsafe.Pointer(&st)), unix.WALL|unix.WNOHANG, 0, 0, 0)
	if e != 0 {
		return 0, false, e
	}
	return Status(st), int(r) == tid, nil
}
