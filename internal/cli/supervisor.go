package cli

import (
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/sandtree/sandtree/internal/engine"
	"github.com/sandtree/sandtree/internal/supervisor"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// supervisorCmd is the owner of one family's sandboxes; the host starts it.
func (inv *invocation) supervisorCmd() *cobra.Command {
	var family string // for ps(1) alone; the host says the rest by descriptor
	cmd := &cobra.Command{
		Use:    "supervisor",
		Short:  "Part of the daemon, started by serve",
		Hidden: true,
		Args:   exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			log := inv.logger(false)
			return supervisor.Main(cmd.Context(), log, newEngine)
		},
	}
	cmd.Flags().StringVar(&family, "family", "", "the family's id")
	return cmd
}

func newEngine(cfg control.Config, events control.Events, log *slog.Logger) (supervisor.Engine, error) {
	e, err := engine.New(cfg, events, log)
	if err != nil {
		return nil, err // not a nil *Engine in an interface
	}
	return e, nil
}
