package process

import (
	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/process/memory"
	"github.com/sandtree/sandtree/internal/tracee"
)

// yields reports whether a mapping that stands where stubs and areas go has nothing there and may give
// way to them for a while, as what a sanitizer maps so that nobody uses it.
func (p *liveProcess) yields(v *image.VMA) bool {
	if !memory.Yields(v) {
		return false
	}
	empty, err := p.memory.Empty(tracee.StubStart, tracee.StubEnd)
	return err == nil && empty
}

// mapBehind makes what belongs where a stub or an area was; at is a system call instruction of the process's.
func mapBehind(t *tracee.Tracee, at uint64, behind []image.VMA) error {
	for i := range behind {
		v := &behind[i]
		const flags = unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_FIXED | unix.MAP_NORESERVE
		if _, err := t.Syscall(at, unix.SYS_MMAP, v.Start, v.Len(), uint64(v.Prot), flags, ^uint64(0), 0); err != nil { //nolint:gosec // bits
			return err
		}
		for _, advice := range memory.Advised(v) {
			if _, err := t.Syscall(at, unix.SYS_MADVISE, v.Start, v.Len(), uint64(advice)); err != nil { //nolint:gosec // a small number
				return err
			}
		}
	}
	return nil
}
