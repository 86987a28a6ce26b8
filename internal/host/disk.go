package host

import (
	"context"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/host/control"
)

// lookEvery is how often the free space is looked at.
const lookEvery = 5 * time.Second

// disk returns what is free on the disk of the state directory, and how much
// of that pools leave to others.
func (h *host) disk() (free, reserve int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(h.layout.State, &st); err != nil {
		return 0, 0, fault.New(fault.Internal, "free space of %s: %w", h.layout.State, err)
	}
	reserve = h.cfg.HostReserve
	if reserve == 0 {
		reserve = max(1<<30, int64(st.Blocks)*st.Bsize/20) // as package pool has it
	}
	return int64(st.Bavail) * st.Bsize, reserve, nil
}

// watchDisk tells the node when the disk runs full.
func (h *host) watchDisk(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	low := false
	for {
		free, reserve, err := h.disk()
		switch {
		case err != nil:
			h.log.Error("watch the disk", "error", err)
		case free >= 2*reserve:
			low = false
		case !low:
			low = h.node.notify(control.EventLowDisk, control.LowDisk{FreeBytes: free, ReserveBytes: reserve})
			h.log.Warn("the disk of the state directory runs full", "free", free, "reserve", reserve)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
