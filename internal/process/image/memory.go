package image

import "golang.org/x/sys/unix"

// Memory is an address space. The pages themselves are elsewhere: private ones
// in a zygote, shared ones in a [Shared].
type Memory struct {
	VMAs []VMA // by address
	MM   MM
	Auxv []byte
}

// MM holds the addresses that struct prctl_mm_map has, in its order (prctl(2),
// PR_SET_MM_MAP).
type MM struct {
	StartCode, EndCode, StartData, EndData, StartBrk, Brk,
	StartStack, ArgStart, ArgEnd, EnvStart, EnvEnd uint64
}

// VMAKind says what backs a mapping.
type VMAKind byte

// Kinds of mappings.
const (
	Anonymous VMAKind = iota
	FileBacked
	SharedAnonymous // MAP_SHARED|MAP_ANONYMOUS, memfd: backed by Tree's Shared
	Stack           // grows down
	VDSO            // [vdso], [vvar] and its like: the kernel's
)

// VMA is one mapping.
type VMA struct {
	Start, End uint64
	Prot       int  // PROT_
	Shared     bool // MAP_SHARED
	Kind       VMAKind
	Offset     uint64 // in the file or shared object
	Path       string // of a file, inside; without " (deleted)"
	Deleted    bool   // the file has no name any more, or another file has it
	Kept       bool   // the file is a layer's or a checkpoint's own, which Path named when it was mapped
	Name       string // of the kernel's own mappings
	Dev        uint64 // makedev as in maps, of files and shared objects
	Ino        uint64
	// Fresh is set if the mapping is another one than the mapping of the same
	// place at the parent checkpoint.
	Fresh  bool
	Advice Advice
}

// Advice is what madvise(2) and mlock(2) left on a mapping.
type Advice uint16

// Advice that a checkpoint keeps.
const (
	// WipeOnFork memory holds secrets, like the state of a random generator:
	// it is zero in every restored process.
	WipeOnFork Advice = 1 << iota
	DontDump
	DontFork
	Locked
	HugePage
	NoHugePage
	// Droppable memory (MAP_DROPPABLE, Linux 6.11) may be gone at any time,
	// and is in every restored process.
	Droppable
	// Keyed memory is behind a protection key of its own (pkeys(7)); it is refused.
	Keyed
	// LockedOnFault memory is locked where it has pages (mlock2(2)); it is
	// Locked, too.
	LockedOnFault
	Sequential
	Random
	// MayWrite is of a shared mapping whose file was opened for writing, so that
	// mprotect(2) may make it writable.
	MayWrite
	// GrowsDown is a mapping that grows like a stack (MAP_GROWSDOWN).
	GrowsDown
	Mergeable
	// Sealed memory (mseal(2), Linux 6.10) cannot be unmapped, moved or protected
	// otherwise.
	Sealed
	// Reserved memory is of huge pages that were reserved by hand (hugetlbfs, whatever the
	// mapping is called); it is refused.
	Reserved
)

// Len is the mapping's length in bytes.
func (v *VMA) Len() uint64 { return v.End - v.Start }

// Shared is an object that shared mappings show: anonymous shared memory, or a
// file that has no name any more. Its content is in an anonymous file of the
// host, FD, which the image owns.
type Shared struct {
	Dev, Ino uint64
	Size     int64
	Name     string // of the file that it was, or /dev/zero
	FD       int    // -1 if Object is set
	// Object is not 0 if descriptors refer to the file, too: it is that of
	// theirs in Tree.Files, which have its content.
	Object int
}

// Close frees the content.
func (s *Shared) Close() error {
	if s.FD < 0 {
		return nil
	}
	return unix.Close(s.FD)
}
