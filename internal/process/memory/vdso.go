package memory

import (
	"bytes"
	"errors"

	"github.com/sandtree/sandtree/internal/linux/procmem"
	"github.com/sandtree/sandtree/internal/process/image"
)

// FindSyscall returns the address of a syscall instruction in a process's
// [vdso], which every process has and can execute.
func FindSyscall(host int, vmas []image.VMA) (uint64, error) {
	for i := range vmas {
		v := &vmas[i]
		if v.Name != "[vdso]" {
			continue
		}
		code := make([]byte, v.Len())
		if err := procmem.Read(host, v.Start, code); err != nil {
			return 0, err
		}
		if at := bytes.Index(code, syscallInstruction); at >= 0 {
			return v.Start + uint64(at), nil
		}
	}
	return 0, errors.New("it has no [vdso] with a system call in it")
}
