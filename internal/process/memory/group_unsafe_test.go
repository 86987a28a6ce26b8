package memory

import (
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/feature/featuretest"
	"github.com/sandtree/sandtree/internal/linux/pagemap"
	"github.com/sandtree/sandtree/internal/linux/uffd"
)

// The kernel answers for all mappings of a range, and passes over what none is in.
func TestRegisteredOverHoles(t *testing.T) {
	featuretest.Need(t, "write tracking")
	fd, _, e := unix.Syscall(unix.SYS_USERFAULTFD, uffd.Flags, 0, 0)
	if e != 0 {
		t.Fatal(e)
	}
	defer unix.Close(int(fd))
	if err := uffd.Enable(int(fd)); err != nil {
		t.Fatal(err)
	}
	pages, err := unix.Open("/proc/self/pagemap", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pages)
	// Three runs of two pages, with a hole before the last.
	b, err := unix.Mmap(-1, 0, 7*pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(b) }()
	at := uint64(uintptr(unsafe.Pointer(&b[0])))
	page := func(n uint64) uint64 { return at + n*pageSize }
	if _, _, e := unix.Syscall(unix.SYS_MUNMAP, uintptr(page(4)), pageSize, 0); e != 0 {
		t.Fatal(e)
	}
	ask := func(when string, want unix.Errno) {
		t.Helper()
		if e := pagemap.Registered(pages, page(0), page(7)); e != want {
			t.Errorf("%s: %v, want %v", when, e, want)
		}
	}
	ask("nothing is registered", unix.EPERM)
	for i, r := range [][2]uint64{{0, 2}, {5, 7}, {2, 4}} {
		if e := uffd.Register(int(fd), page(r[0]), page(r[1])); e != 0 {
			t.Fatal(e)
		}
		if i == 1 {
			ask("the middle is not registered", unix.EPERM)
		}
	}
	ask("all is registered", 0)
	// What stands in place of the last is another mapping.
	if _, _, e := unix.Syscall6(unix.SYS_MMAP, uintptr(page(5)), 2*pageSize, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED, ^uintptr(0), 0); e != 0 {
		t.Fatal(e)
	}
	ask("the last was replaced", unix.EPERM)
}
