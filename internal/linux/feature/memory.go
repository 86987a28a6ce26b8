package feature

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

var memoryFeatures = []Feature{
	{
		Name: "write tracking", Kernel: "6.7", Required: true,
		For:     "a checkpoint copies only the pages written since the last (userfaultfd WP_ASYNC, PAGEMAP_SCAN)",
		Without: "nothing can be checkpointed",
		Help:    "CONFIG_USERFAULTFD and CONFIG_PTE_MARKER_UFFD_WP",
		probe:   probeWriteTracking,
	},
	{
		Name: "process_vm_readv", Kernel: "3.2", Required: true,
		For:     "memory of stopped processes is read, and calls are placed in stubs",
		Without: "nothing runs",
		Help:    "CONFIG_CROSS_MEMORY_ATTACH",
		probe: func() error {
			to, from := make([]byte, 4), []byte("test")
			if err := processVMRead(os.Getpid(), to, from); err != nil {
				return fmt.Errorf("process_vm_readv: %w", err)
			}
			return nil
		},
	},
	{
		Name: "PROCMAP_QUERY", Kernel: "6.11",
		For:     "mappings of a process are listed without making and reading text",
		Without: "the text of /proc/PID/maps is parsed, some 0.1 ms a process",
		probe:   probeProcmapQuery,
	},
	{
		Name: "transparent huge pages", Kernel: "2.6.38",
		For:     "a checkpoint's memory is forked in 0.13 ms for 100 MB",
		Without: "2.5 ms for 100 MB, 77 ms for 1 GB",
		Help:    "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
		probe: func() error {
			b, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled")
			if err == nil && strings.Contains(string(b), "[never]") {
				err = fmt.Errorf("switched off: %w", errAbsent)
			}
			return err
		},
	},
	{
		Name: "MADV_COLLAPSE", Kernel: "6.1",
		For:     "memory that checkpoints have split is made huge pages again",
		Without: "forks of large processes get slower with each checkpoint",
		Help:    "CONFIG_TRANSPARENT_HUGEPAGE",
		probe:   probeCollapse,
	},
	{
		Name: "MADV_GUARD_INSTALL", Kernel: "6.13",
		For:     "restored programs of C libraries that use it find their guard pages",
		Without: "nothing: such programs do without it too",
		probe: func() error {
			return withPages(1, func(p []byte) error {
				return madvise(p, madvGuardInstall)
			})
		},
	},
	{
		Name: "guard pages in PAGEMAP_SCAN", Kernel: "6.16",
		For:     "guard pages are told from memory that cannot be read",
		Without: "programs with guard pages (Linux 6.13) cannot be checkpointed",
		probe:   probeGuardPages,
	},
	{
		Name: "chosen numbers of timers", Kernel: "6.15",
		For:     "restored POSIX timers have the numbers that they had",
		Without: "they are counted up to, which takes the longer the more of them a program has ever made",
		probe: func() error {
			_, err := unix.PrctlRetInt(unix.PR_TIMER_CREATE_RESTORE_IDS, unix.PR_TIMER_CREATE_RESTORE_IDS_GET, 0, 0, 0)
			return err
		},
	},
}

func madvise(p []byte, advice int) error {
	if err := unix.Madvise(p, advice); err != nil {
		return fmt.Errorf("madvise: %w", err)
	}
	return nil
}

// withPages maps fresh memory for a probe.
func withPages(n int, f func(p []byte) error) error {
	p, err := unix.Mmap(-1, 0, n*os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("mmap: %w", err)
	}
	return errors.Join(f(p), unix.Munmap(p))
}

// linux/userfaultfd.h and linux/fs.h. package uffd and package pagemap have
// these for use; a probe stands on its own.
const (
	uffdUserModeOnly   = 1
	uffdAPI            = 0xaa
	uffdWPUnpopulated  = 1 << 13
	uffdWPAsync        = 1 << 15
	uffdRegisterModeWP = 1 << 1
	uffdioAPI          = 0xc018aa3f
	uffdioRegister     = 0xc020aa00

	pagemapScan        = 0xc0606610
	pmScanWPMatching   = 1 << 0
	pmScanCheckWPAsync = 1 << 1
	pageIsWritten      = 1 << 1
	pageIsGuard        = 1 << 8

	madvGuardInstall = 102 // MADV_GUARD_INSTALL of linux/mman.h

	procmapQuery = 0xc0686611
)

// The kernel writes to fields that are named _ here.
type uffdioAPIArg struct{ api, features, _ uint64 }

type uffdioRegisterArg struct{ start, length, mode, _ uint64 }

type pmScanArg struct {
	size, flags, start, end uint64
	_                       uint64 // walk_end
	vec, vecLen             uint64
	_, _                    uint64 // max_pages, category_inverted
	categoryMask            uint64
	_                       uint64 // category_anyof_mask
	returnMask              uint64
}

type procmapQueryArg struct {
	size      uint64
	_         uint64 // query_flags
	queryAddr uint64
	_         [10]uint64 // the answer
}

// probeWriteTracking registers a page, scans it, and writes to it: the write
// must pass without a handler and show in the next scan.
func probeWriteTracking() error {
	fd, _, e := unix.Syscall(unix.SYS_USERFAULTFD, unix.O_CLOEXEC|uffdUserModeOnly, 0, 0)
	if e != 0 {
		return call("userfaultfd", e)
	}
	defer unix.Close(int(fd))
	api := uffdioAPIArg{api: uffdAPI, features: uffdWPAsync | uffdWPUnpopulated}
	if err := ioctl(int(fd), uffdioAPI, &api); err != nil {
		return fmt.Errorf("userfaultfd WP_ASYNC: %w", err)
	}
	pagemap, err := unix.Open("/proc/self/pagemap", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(pagemap)
	return withPages(1, func(p []byte) error {
		p[0] = 1
		at := uint64(addressOf(p))
		reg := uffdioRegisterArg{start: at, length: uint64(len(p)), mode: uffdRegisterModeWP}
		if err := ioctl(int(fd), uffdioRegister, &reg); err != nil {
			return fmt.Errorf("userfaultfd register: %w", err)
		}
		scan := func() (uint64, error) {
			region := [1]struct{ start, end, categories uint64 }{}
			arg := pmScanArg{
				size: 96, flags: pmScanWPMatching | pmScanCheckWPAsync, start: at, end: at + uint64(len(p)),
				vec: uint64(regionAddress(&region)), vecLen: 1, categoryMask: pageIsWritten, returnMask: pageIsWritten,
			}
			err := ioctl(pagemap, pagemapScan, &arg)
			return region[0].end - region[0].start, err
		}
		for _, want := range []uint64{uint64(len(p)), 0} { // protects; then finds nothing
			if n, err := scan(); err != nil || n != want {
				return fmt.Errorf("PAGEMAP_SCAN found %d bytes, not %d: %w", n, want, errors.Join(err, errAbsent))
			}
		}
		p[0] = 2
		if n, err := scan(); err != nil || n == 0 {
			return fmt.Errorf("PAGEMAP_SCAN missed a write: %w", errors.Join(err, errAbsent))
		}
		return nil
	})
}

// probeGuardPages makes a guard page and looks for it.
func probeGuardPages() error {
	pagemap, err := unix.Open("/proc/self/pagemap", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(pagemap)
	return withPages(1, func(p []byte) error {
		if err := madvise(p, madvGuardInstall); err != nil {
			return err
		}
		region := [1]struct{ start, end, categories uint64 }{}
		at := uint64(addressOf(p))
		arg := pmScanArg{
			size: 96, start: at, end: at + uint64(len(p)),
			vec: uint64(regionAddress(&region)), vecLen: 1, categoryMask: pageIsGuard, returnMask: pageIsGuard,
		}
		if err := ioctl(pagemap, pagemapScan, &arg); err != nil {
			return fmt.Errorf("PAGEMAP_SCAN of guard pages: %w", err)
		}
		if region[0].end-region[0].start != uint64(len(p)) {
			return fmt.Errorf("PAGEMAP_SCAN missed a guard page: %w", errAbsent)
		}
		return nil
	})
}

func probeProcmapQuery() error {
	fd, err := unix.Open("/proc/self/maps", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return withPages(1, func(p []byte) error {
		q := procmapQueryArg{size: 104, queryAddr: uint64(addressOf(p))}
		return ioctl(fd, procmapQuery, &q)
	})
}

// probeCollapse collapses an aligned 2 MiB region. No free huge page now
// (EAGAIN, ENOMEM) is an answer too.
func probeCollapse() error {
	const huge = 2 << 20
	return withPages(2*huge/os.Getpagesize(), func(p []byte) error {
		at := (huge - int(addressOf(p)%huge)) % huge
		for i := range huge / os.Getpagesize() {
			p[at+i*os.Getpagesize()] = 1
		}
		err := unix.Madvise(p[at:at+huge], unix.MADV_COLLAPSE)
		if err == unix.EAGAIN || err == unix.ENOMEM || err == unix.EBUSY {
			return nil
		}
		if err != nil {
			return fmt.Errorf("madvise: %w", err)
		}
		return nil
	})
}
