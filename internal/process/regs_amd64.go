package process

import (
	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// userCode64 is the code segment of 64-bit programs.
const userCode64 = 0x33

// native reports whether a thread runs 64-bit code.
func native(r *tracee.Registers) bool { return r.Cs == userCode64 }

// threadPointer is the address of a thread's own storage.
func threadPointer(t *image.Thread) uint64 { return t.Regs.Fs_base }

// callOf describes the call that a thread stopped in.
func callOf(nr int, r *tracee.Registers) call {
	return call{nr: nr, ip: r.Rip, sp: r.Rsp, args: [6]uint64{r.Rdi, r.Rsi, r.Rdx, r.R10, r.R8, r.R9}}
}

// setCall replaces the number of the call that a thread stopped in. One that is not
// known is interrupted.
func setCall(r *unix.PtraceRegs, nr int) {
	if nr < 0 {
		r.Rax = ^uint64(unix.EINTR) + 1
		r.Orig_rax = ^uint64(0)
		return
	}
	r.Orig_rax = uint64(nr)
}

// instruction is the address that a thread goes on at, and jump changes it.
func instruction(r *tracee.Registers) uint64 { return r.Rip }
func jump(r *tracee.Registers, to uint64)    { r.Rip = to }
