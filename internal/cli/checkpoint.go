package cli

import (
	"context"
	"fmt"
	"github.com/sandtree/sandtree/client"
	"io"

	"github.com/spf13/cobra"
)

func (inv *invocation) checkpointCmd() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "checkpoint SANDBOX",
		Short: "Keep the state of a sandbox: files and processes",
		Long: `Take a checkpoint of a sandbox: its files and processes of one instant. The sandbox
goes on; what it holds is not changed. The checkpoint is a node of the sandbox's tree,
below the one it stands on.`,
		Example:           "  sandtree checkpoint try --name before-upgrade\n  sandtree checkpoint rm try before-upgrade",
		Args:              exactly(1),
		ValidArgsFunction: inv.completeSandbox,
		RunE: inv.withDaemon(func(ctx context.Context, c *client.Client, args []string) error {
			cp, err := c.SandboxHandle(args[0]).Checkpoint(ctx, name)
			if err != nil {
				return err
			}
			return inv.show(cp, func(w io.Writer) {
				fmt.Fprintf(w, "%s  frozen %s, %s of memory\n", cp.ID, formatNS(cp.FrozenNS), formatBytes(cp.DirtyBytes))
			})
		}),
	}
	cmd.Flags().StringVar(&name, "name", "", "name of the checkpoint, unique within the sandbox")
	cmd.AddCommand(inv.checkpointRmCmd())
	return cmd
}

func (inv *invocation) checkpointRmCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "rm SANDBOX CHECKPOINT…",
		Short: "Remove checkpoints",
		Long: `Remove checkpoints of a sandbox, by name or id. Those below a removed one stay, and so
do forks that were made of it.`,
		Example:           "  sandtree checkpoint rm try before-upgrade",
		Args:              atLeast(2),
		ValidArgsFunction: inv.completeCheckpoint,
		RunE: inv.withDaemon(func(ctx context.Context, c *client.Client, args []string) error {
			sb := c.SandboxHandle(args[0])
			tree, err := sb.Tree(ctx)
			if err != nil {
				return err
			}
			var gone []removed
			for _, ref := range args[1:] {
				if err := sb.RemoveCheckpoint(ctx, ref); err != nil {
					return err
				}
				gone = append(gone, removed{checkpointID(tree, ref)})
			}
			return inv.showRemoved(gone, len(args)-1)
		}),
	}
}
