package cli

import (
	"context"
	"fmt"
	"github.com/sandtree/sandtree/client"
	"io"

	"github.com/spf13/cobra"
)

func (inv *invocation) rollbackCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "rollback SANDBOX CHECKPOINT",
		Short: "Make a sandbox what it was at a checkpoint",
		Long: `Make a sandbox what it was at one of its checkpoints, files and processes. Commands
that ran then go on from there, and whoever is attached to them stays; commands that
were started later end. Other checkpoints stay.`,
		Example:           "  sandtree rollback try before-upgrade",
		Args:              exactly(2),
		ValidArgsFunction: inv.completeCheckpoint,
		RunE: inv.withDaemon(func(ctx context.Context, c *client.Client, args []string) error {
			r, err := c.SandboxHandle(args[0]).Rollback(ctx, args[1])
			if err != nil {
				return err
			}
			return inv.show(r, func(w io.Writer) {
				fmt.Fprintf(w, "%s  at %s after %s\n", r.ID, r.Checkpoint, formatNS(r.ElapsedNS))
			})
		}),
	}
}
