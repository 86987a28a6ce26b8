package process

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// processor is the one that the calling thread runs on (getcpu(2)).
func processor() (int, error) {
	var cpu uint32
	if _, _, e := unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&cpu)), 0, 0); e != 0 {
		return 0, e
	}
	return int(cpu), nil
}
