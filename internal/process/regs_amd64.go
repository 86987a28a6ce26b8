package process

import (
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// userCode64 is the code segment of 64-bit programs.
const userCode64 = 0x33

// native reports whether a thread runs 64-bit code.
func native(r *tracee.Registers) bool { return r.Cs == userCode64 }

// threadPointer is the address of a thread's own storage.
func threadPointer(t *image.Thread) uint64 { return t.Regs.Fs_base }
