package cli

import (
	"github.com/spf13/cobra"

	"github.com/sandtree/sandtree/internal/worker"
)

// workerCmd writes and reads one family's durable checkpoints; the host starts
// it.
func (inv *invocation) workerCmd() *cobra.Command {
	var family string // for ps(1) alone
	cmd := &cobra.Command{
		Use:    "worker",
		Short:  "Part of the daemon, started by serve",
		Hidden: true,
		Args:   exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return worker.Main(cmd.Context(), inv.logger(false))
		},
	}
	cmd.Flags().StringVar(&family, "family", "", "the family's id")
	return cmd
}
