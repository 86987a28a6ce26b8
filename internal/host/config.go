package host

import (
	"log/slog"
	"os"
	"time"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/host/layout"
)

// Config configures a daemon. Zero values mean the defaults.
type Config struct {
	// State is the state directory; default [layout.DefaultState].
	State string
	// Socket is the path of the API socket; default [layout.Layout.Socket].
	Socket string
	// NodeID is the user and group id of the node; default [layout.NodeID].
	NodeID uint32
	// Executable is started with the arguments "node" or "supervisor";
	// default: this program.
	Executable string
	// PoolBytes is the size of a family's pool at its start, HostReserve
	// what pools leave free on the disk; defaults in package pool.
	PoolBytes   int64
	HostReserve int64
	// CheckpointMemory is what the checkpoints of all families may take in memory, in
	// bytes; default a quarter of the machine's.
	CheckpointMemory int64
	// HibernateWithin is how long an orderly end may take to hibernate the
	// sandboxes that run; they come back when they are first used. Zero: they end.
	HibernateWithin time.Duration
	// OtherKernel takes durable checkpoints of another kernel release, where all
	// that programs have of the kernel in their memory is the same.
	OtherKernel bool
	// Log gets what the host has to say; default slog's.
	Log *slog.Logger
}

func (c Config) withDefaults(l layout.Layout) (Config, error) {
	if c.Socket == "" {
		c.Socket = l.Socket()
	}
	if c.NodeID == 0 {
		c.NodeID = layout.NodeID
	}
	if c.Executable == "" {
		// Also right when the file was replaced meanwhile.
		c.Executable = "/proc/self/exe"
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if os.Geteuid() != 0 {
		return c, fault.New(fault.Permission, "sandtree serve needs root; this is user %d", os.Geteuid()).
			WithHint("sudo sandtree serve")
	}
	return c, nil
}
