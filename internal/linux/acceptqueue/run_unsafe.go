package acceptqueue

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// testRun is what BPF_PROG_TEST_RUN takes (union bpf_attr of linux/bpf.h; Linux
// 5.10 for this kind of program).
type testRun struct {
	program, result         uint32
	dataSizeIn, dataSizeOut uint32
	dataIn, dataOut         uint64
	repeat, duration        uint32
	contextIn, contextOut   uint32
	contextFrom, contextTo  uint64
	flags, processor, batch uint32
	_                       uint32
}

// runProgram runs a program once, on the calling thread, with an address and a
// length. Its result is an errno.
func runProgram(fd int, address, n uint64) error {
	context := [2]uint64{address, n}
	a := testRun{
		program: uint32(fd), contextIn: uint32(unsafe.Sizeof(context)),
		contextFrom: uint64(uintptr(unsafe.Pointer(&context))),
	}
	_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_PROG_TEST_RUN, uintptr(unsafe.Pointer(&a)), unsafe.Sizeof(a))
	runtime.KeepAlive(&context)
	if errno != 0 {
		return fmt.Errorf("BPF_PROG_TEST_RUN: %w", errno)
	}
	if e := int32(a.result); e < 0 {
		return unix.Errno(-e)
	}
	return nil
}
