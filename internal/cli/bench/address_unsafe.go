package bench

import "unsafe"

// address is where a mapping begins.
func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
