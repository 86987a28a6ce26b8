package tracee

import "golang.org/x/sys/unix"

// Registers are a thread's general registers.
type Registers struct{ unix.PtraceRegs }

// noSyscall in orig_rax tells the kernel that the thread is in no system call,
// so that it restarts none.
const noSyscall = ^uint64(0)

// toBatch points the registers at a batch loop that ends in a trap.
func (r *Registers) toBatch(loop uint64, b *Batch) {
	r.Rip, r.Rbx, r.R12, r.R15, r.Orig_rax = loop, b.base, uint64(len(b.ops)), 0, noSyscall
}

// Call has the thread make a system call when it goes on, at a syscall instruction of
// its own: one that does not return.
func (r *Registers) Call(at uint64, nr int, args ...uint64) { r.toCall(at, nr, args) }

// toCall points the registers at a syscall instruction.
func (r *Registers) toCall(at uint64, nr int, args []uint64) {
	r.Rip, r.Rax, r.Orig_rax = at, uint64(nr), noSyscall
	for i, p := range []*uint64{&r.Rdi, &r.Rsi, &r.Rdx, &r.R10, &r.R8, &r.R9}[:len(args)] {
		*p = args[i]
	}
}

// result is what the last system call returned.
func (r *Registers) result() int64 { return int64(r.Rax) }

// InSyscall reports whether the thread stopped inside a system call, and
// which.
func (r *Registers) InSyscall() (nr int, ok bool) {
	return int(int64(r.Orig_rax)), int64(r.Orig_rax) >= 0
}

// Result is what the system call that the thread stopped in is about to
// return; the kernel's internal restart numbers (ERESTARTSYS and its like,
// include/linux/errno.h) among them.
func (r *Registers) Result() int64 { return int64(r.Rax) }

// Restart has the kernel enter the system call that the thread stopped in once more
// when it goes on, unless a signal is handled first: then the call returns EINTR, as
// it would have. (ERESTARTNOHAND in the kernel; going back over the syscall
// instruction by ourselves would lose that EINTR.)
func (r *Registers) Restart() {
	const restartNoHand = -514
	r.Rax = ^uint64(0) - (-restartNoHand - 1)
}

// SetResult makes the system call that the thread stopped in return v.
func (r *Registers) SetResult(v int64) {
	r.Rax = uint64(v)
	r.Orig_rax = noSyscall
}
