package cli

import (
	"io"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandtree/sandtree/internal/failpoint"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/host"
)

func (inv *invocation) serveCmd() *cobra.Command {
	var (
		pool, reserve byteSize
		memory        byteSize
		debug, other  bool
		within        time.Duration
	)
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the daemon",
		Long: `Run the daemon until SIGTERM or ctrl-c; then its sandboxes are hibernated, and what it made
on the machine is removed, but the state directory. The next daemon has them again, as they
were, when they are first used. A second signal, or SIGUSR1, ends it at once: sandboxes come
back at their last durable checkpoint then. Other commands start it in the background
when it is not running. One state directory is one daemon: a second one is refused.
The log goes to the standard error, as JSON with --json.`,
		Example: "  sandtree serve\n  sandtree serve --state /srv/sandtree --socket /run/sandtree.sock",
		Args:    exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := failpoint.CheckEnv(); err != nil {
				return fault.New(fault.Invalid, "%w", err)
			}
			cfg := host.Config{
				State: inv.state, PoolBytes: int64(pool), HostReserve: int64(reserve), CheckpointMemory: int64(memory),
				HibernateWithin: within, OtherKernel: other, Log: inv.logger(debug),
			}
			if inv.socket != "" {
				abs, err := filepath.Abs(inv.socket)
				if err != nil {
					return fault.New(fault.Invalid, "--socket %s: %w", inv.socket, err)
				}
				cfg.Socket = abs
			}
			return host.Serve(cmd.Context(), cfg)
		},
	}
	f := cmd.Flags()
	f.Var(&pool, "pool-size", "size that a template's pool begins with (default 2G); it grows as needed")
	f.Var(&reserve, "reserve", "what pools leave free on the disk (default 5%, at least 1G)")
	f.DurationVar(&within, "hibernate-within", time.Minute, "how long it may take to hibernate sandboxes at the end; 0: they are not")
	f.Var(&memory, "checkpoint-memory", "what checkpoints may take in memory (default a quarter of it); those used longest ago are on disk")
	f.BoolVar(&other, "other-kernel", false, "take durable checkpoints of another kernel release, where programs cannot tell")
	f.BoolVar(&debug, "debug", false, "log what is done in detail")
	return cmd
}

// logger writes a daemon's log to the standard error.
func (inv *invocation) logger(debug bool) *slog.Logger {
	return newLogger(inv.err, inv.json, debug)
}

func newLogger(w io.Writer, asJSON, debug bool) *slog.Logger {
	o := &slog.HandlerOptions{Level: slog.LevelInfo}
	if debug {
		o.Level = slog.LevelDebug
	}
	if asJSON {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
