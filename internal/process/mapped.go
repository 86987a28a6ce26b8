package process

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/process/memory"
)

// openMapped opens the file of a mapping for reading, whether or not a path leads to
// it (proc_pid_map_files(5)). The kernel finds such a file by the exact bounds of a
// mapping, and may have joined the mapping with its neighbour since the mappings were
// read: beginning to track writes to them does that.
func (p *liveProcess) openMapped(v *image.VMA) (int, error) {
	fd, err := p.openBetween(v.Start, v.End)
	if err != unix.ENOENT {
		return fd, err
	}
	now, err := memory.ReadMaps(p.via)
	if err != nil {
		return -1, err
	}
	joined := memory.Find(now, v.Start)
	if joined == nil || joined.Dev != v.Dev || joined.Ino != v.Ino {
		return -1, fmt.Errorf("the mapping at %#x is gone: %w", v.Start, unix.ENOENT)
	}
	return p.openBetween(joined.Start, joined.End)
}

func (p *liveProcess) openBetween(start, end uint64) (int, error) {
	return unix.Open(fmt.Sprintf("/proc/%d/map_files/%x-%x", p.via, start, end), unix.O_RDONLY|unix.O_CLOEXEC, 0)
}
