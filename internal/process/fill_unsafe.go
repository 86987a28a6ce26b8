package process

import "unsafe"

// addressOf is where a mapping of this process's begins.
func addressOf(m []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&m[0]))) }
