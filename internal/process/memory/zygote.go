package memory

import (
	"bytes"
	"fmt"
	"maps"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// Backing opens the file of a new mapping of a zygote: the layer's file, or
// that of a checkpoint's snapshot. The caller closes it.
type Backing func(pid int, v *image.VMA) (fd int, err error)

// Zygote holds the private memory and the file mappings of some processes, to
// be cloned by restore. It is safe for use by many threads after its last
// Update.
type Zygote struct {
	server *tracee.Server
	layout *layout
	vmas   map[int][]image.VMA // by pid, as they stand here; without kernel mappings
	guards map[int]guards      // by pid
	// loans are the pages that stand in another process's window, by borrower
	// and address; no lender borrows the same page itself. borrowed are the
	// mappings that have some.
	loans    map[int][]loan
	borrowed map[int][]borrowed
	// generation counts the forks that lie between it and the seed's child that
	// its line began with.
	generation int
}

// Generation is how many forks of zygotes, each of the one before, have led to
// this one. The kernel links each mapping of a fork to those of all its
// ancestors that live, so what clones it takes longer the higher it is.
func (z *Zygote) Generation() int { return z.generation }

// NewZygote makes an empty zygote: a fork of a seed, and like it a child of
// this process.
func NewZygote(seed *tracee.Server) (*Zygote, error) {
	s, err := seed.Fork()
	if err != nil {
		return nil, fmt.Errorf("make a zygote: %w", err)
	}
	z := &Zygote{server: s, layout: newLayout(), vmas: map[int][]image.VMA{}, loans: map[int][]loan{}}
	if err := z.prepare(); err != nil {
		s.Kill()
		return nil, fmt.Errorf("make a zygote: %w", err)
	}
	return z, nil
}

// prepare makes a plain stub one whose clones can become other programs. Its
// executable must not stay mapped, or the kernel would refuse another one
// (EBUSY, PR_SET_MM_MAP in prctl(2)): an anonymous copy takes its place. The
// kernel's own mappings go to a known place; the stack is not needed.
func (z *Zygote) prepare() error {
	text, err := readFile(z.server.PID(), "maps")
	if err != nil {
		return err
	}
	vmas, err := ParseMaps(text)
	if err != nil {
		return err
	}
	const rw = unix.PROT_READ | unix.PROT_WRITE
	b := tracee.NewBatch()
	var code uint64
	parked := uint64(vdsoPark)
	for i := range vmas {
		v := &vmas[i]
		switch {
		case v.Kind == image.FileBacked && v.Prot&unix.PROT_EXEC != 0:
			code = parkLow
			b.Call(unix.SYS_MMAP, code, v.Len(), rw, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE, -1, 0)
			b.Memcpy(code, v.Start, v.Len())
			b.Call(unix.SYS_MPROTECT, code, v.Len(), unix.PROT_READ|unix.PROT_EXEC)
			b.Call(unix.SYS_MREMAP, code, v.Len(), v.Len(), unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, v.Start)
		case v.Kind == image.Stack:
			b.Call(unix.SYS_MUNMAP, v.Start, v.Len())
		case v.Kind == image.VDSO:
			if v.Start != parked {
				b.Call(unix.SYS_MREMAP, v.Start, v.Len(), v.Len(), unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, parked)
			}
			parked += v.Len()
		}
	}
	queueNoStack(b)
	return z.server.Do(b)
}

// queueNoStack has a process's arguments and environment, which were on its stack, be empty
// and in the stub. Whoever reads /proc/PID/cmdline, as ps(1) does, would make the
// next stack above where they were grow down to there (__access_remote_vm in the
// kernel's mm/memory.c), and that is a captured process's.
func queueNoStack(b *tracee.Batch) {
	const (
		size     = 104 // of struct prctl_mm_map
		noChange = 1<<32 - 1
	)
	const at = uint64(tracee.StubStart)
	// Code, data, break, stack, arguments, environment; an auxiliary vector that is left alone,
	// with its size; the executable, too.
	m := b.PutWords(at, at+pageSize, at, at, at, at, at, at, at, at, at, 0, noChange<<32)
	b.Call(unix.SYS_PRCTL, unix.PR_SET_MM, unix.PR_SET_MM_MAP, m, size, 0)
}

func readFile(pid int, name string) ([]byte, error) {
	path := fmt.Sprintf("/proc/%d/%s", pid, name)
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	defer unix.Close(fd)
	var out []byte
	buf := make([]byte, 1<<16)
	for {
		n, err := unix.Read(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		if n == 0 {
			return out, nil
		}
		out = append(out, buf[:n]...)
	}
}

// Fork makes a copy that shares all pages with this one until either changes
// them.
func (z *Zygote) Fork() (*Zygote, error) {
	s, err := z.server.Fork()
	if err != nil {
		return nil, fmt.Errorf("fork a zygote: %w", err)
	}
	// What the maps hold is replaced as a whole by Update, never changed.
	return &Zygote{
		server: s, layout: z.layout.clone(), vmas: maps.Clone(z.vmas), guards: maps.Clone(z.guards),
		loans: maps.Clone(z.loans), borrowed: z.borrowed, generation: z.generation + 1,
	}, nil
}

// Tables is the size of the zygote's page tables, in bytes.
func (z *Zygote) Tables() int64 {
	text, err := readFile(z.server.PID(), "status")
	if err != nil {
		return 0 // it has ended
	}
	_, rest, _ := bytes.Cut(text, []byte("VmPTE:"))
	var kb int64
	if _, err := fmt.Sscan(string(rest[:min(len(rest), 32)]), &kb); err != nil {
		return 0
	}
	return kb << 10
}

// Server is the stub that holds the memory.
func (z *Zygote) Server() *tracee.Server { return z.server }

// Holds reports whether the zygote has the memory of a process.
func (z *Zygote) Holds(pid int) bool { _, ok := z.vmas[pid]; return ok }

// Kill ends the zygote. What was cloned from it lives on.
func (z *Zygote) Kill() { z.server.Kill() }
