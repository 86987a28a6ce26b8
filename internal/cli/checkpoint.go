package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/fault"
)

func (inv *invocation) checkpointCmd() *cobra.Command {
	var name string
	var standby int
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
			if standby > 0 {
				if err := cp.Standby(ctx, standby); err != nil {
					return err
				}
			}
			return inv.show(cp, func(w io.Writer) {
				fmt.Fprintf(w, "%s  frozen %s, %s of memory\n", cp.ID, formatNS(cp.FrozenNS), formatBytes(cp.DirtyBytes))
			})
		}),
	}
	cmd.Flags().StringVar(&name, "name", "", "name of the checkpoint, unique within the sandbox")
	cmd.Flags().IntVar(&standby, "standby", 0, "keep so many bodies of it ready, for rollbacks and forks to come")
	cmd.AddCommand(inv.checkpointRmCmd(), inv.checkpointStandbyCmd())
	return cmd
}

// stoodBy is what checkpoint standby shows with --json.
type stoodBy struct {
	ID       string `json:"id"`
	Standbys int    `json:"standbys"`
}

func (inv *invocation) checkpointStandbyCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "standby SANDBOX CHECKPOINT N",
		Short: "Keep bodies of a checkpoint ready",
		Long: `Ask that N bodies of a checkpoint stand ready. As many rollbacks to it, or forks of it,
then take a few milliseconds. They are built in the background, as far as memory allows,
and again when they were used; 0 takes the wish back. Without being asked, a sandbox has
one for the checkpoint it stands at and one for that one's parent.`,
		Example:           "  sandtree checkpoint standby try before-upgrade 8",
		Args:              exactly(3),
		ValidArgsFunction: inv.completeCheckpoint,
		RunE: inv.withDaemon(func(ctx context.Context, c *client.Client, args []string) error {
			n, err := strconv.Atoi(args[2])
			if err != nil {
				return fault.New(fault.Invalid, "standby: %q is not a number", args[2])
			}
			sb := c.SandboxHandle(args[0])
			tree, err := sb.Tree(ctx)
			if err != nil {
				return err
			}
			if err := sb.Standby(ctx, args[1], n); err != nil {
				return err
			}
			return inv.show(stoodBy{checkpointID(tree, args[1]), n}, func(w io.Writer) {
				fmt.Fprintf(w, "%d standbys of %s\n", n, args[1])
			})
		}),
	}
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
