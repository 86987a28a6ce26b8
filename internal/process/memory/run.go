package memory

import "github.com/sandtree/sandtree/internal/process/image"

// Run is a run of pages that changed since the last checkpoint.
type Run struct {
	Start, End uint64
	// Data are the pages' contents, in an arena. It is nil for pages that are
	// gone (MADV_DONTNEED): anonymous memory then reads as zero, and a private
	// file mapping as the file.
	Data []byte
	// Guard pages end a process that touches them (MADV_GUARD_INSTALL).
	Guard bool
	// From is not 0 if the pages are those that this process has at the same
	// addresses, shared by fork(2). There is no data then.
	From int
}

// Delta is what one checkpoint found of one process's private memory.
type Delta struct {
	PID  int
	VMAs []image.VMA
	Runs []Run
	// Full is set if Runs hold all pages and nothing of an earlier image of
	// the process may be kept.
	Full bool
	// Forked is set if pages that were written since the last checkpoint may be
	// shared with processes that were born since. It must be known before the
	// copying.
	Forked bool
	// ahead are pages that were copied before the stop; see [Delta.Join].
	ahead []Run
}

// Bytes is how much memory was copied.
func (d *Delta) Bytes() (n int64) {
	for _, r := range d.Runs {
		n += int64(len(r.Data))
	}
	return n
}
