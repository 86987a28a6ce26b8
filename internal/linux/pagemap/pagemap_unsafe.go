// Package pagemap asks the kernel which pages of a process are populated and
// which were written to (PAGEMAP_SCAN, Linux 6.7;
// Documentation/admin-guide/mm/pagemap.rst).
package pagemap

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Categories of pages.
const (
	Allowed  = 1 << 0 // registered for write tracking
	Written  = 1 << 1
	File     = 1 << 2 // the file's own page, not a private copy; costs ten times the scan
	Present  = 1 << 3
	Swapped  = 1 << 4
	ZeroPage = 1 << 5
	Huge     = 1 << 6
	Guard    = 1 << 8 // MADV_GUARD_INSTALL; see [ReportsGuards]. It is Swapped, too
)

// Flags of a scan.
const (
	// Protect write-protects the pages that match.
	Protect = 1 << 0
	// Check fails with EPERM if part of the range is not registered.
	Check = 1 << 1
)

const pageSize = 4096

const ioctlScan = 0xc0606610 // PAGEMAP_SCAN

// Region is a run of pages of the same categories.
type Region struct {
	Start, End uint64
	Categories uint64
}

// Query says what a scan looks for. A page matches if its categories, with
// those of Invert flipped, contain all of Mask and, unless AnyOf is 0, one of AnyOf.
type Query struct {
	Flags  uint64
	Invert uint64
	Mask   uint64
	AnyOf  uint64
	Return uint64 // which categories regions report
}

// arg is struct pm_scan_arg.
type arg struct {
	size, flags, start, end, walkEnd, vec, vecLen, maxPages,
	invert, mask, anyOf, ret uint64
}

// ProtectAll write-protects all of a range, which must be registered (EPERM), and reports
// nothing: without a place for reports the kernel takes a shorter way. fd is
// /proc/PID/pagemap.
func ProtectAll(fd int, start, end uint64) unix.Errno {
	a := arg{size: uint64(unsafe.Sizeof(arg{})), flags: Protect | Check, start: start, end: end, mask: Written}
	_, _, e := unix.RawSyscall(unix.SYS_IOCTL, uintptr(fd), ioctlScan, uintptr(unsafe.Pointer(&a)))
	return e
}

// Registered asks whether all mappings of a range are registered for write tracking; what
// no mapping is in does not count. EPERM: one is not. No page is looked at, and without a
// place for reports the kernel needs no memory for them. fd is /proc/PID/pagemap.
func Registered(fd int, start, end uint64) unix.Errno {
	a := arg{size: uint64(unsafe.Sizeof(arg{})), flags: Check, start: start, end: end, invert: Allowed, mask: Allowed}
	_, _, e := unix.RawSyscall(unix.SYS_IOCTL, uintptr(fd), ioctlScan, uintptr(unsafe.Pointer(&a)))
	return e
}

// Scan appends the matching regions of a range to out, a buffer of its own
// length at a time, and stops at the first error. fd is /proc/PID/pagemap.
// A scan that protects must not be resumed after EPERM: it has protected pages
// and reported none of them.
func Scan(fd int, start, end uint64, q Query, buf []Region, out func(Region)) unix.Errno {
	for at := start; at < end; {
		a := arg{
			size: uint64(unsafe.Sizeof(arg{})), flags: q.Flags, start: at, end: end,
			vec: uint64(uintptr(unsafe.Pointer(&buf[0]))),
			// The kernel takes memory for as many: no more than there are pages.
			vecLen: min(uint64(len(buf)), (end-at+pageSize-1)/pageSize),
			invert: q.Invert, mask: q.Mask, anyOf: q.AnyOf, ret: q.Return,
		}
		n, _, e := unix.RawSyscall(unix.SYS_IOCTL, uintptr(fd), ioctlScan, uintptr(unsafe.Pointer(&a)))
		if e != 0 {
			return e
		}
		for _, r := range buf[:n] {
			out(r)
		}
		at = a.walkEnd
	}
	return 0
}
