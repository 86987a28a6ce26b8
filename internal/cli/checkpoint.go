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
	var o client.CheckpointOptions
	var standby int
	var explain bool
	cmd := &cobra.Command{
		Use:   "checkpoint SANDBOX",
		Short: "Keep the state of a sandbox: files and processes",
		Long: `Take a checkpoint of a sandbox: its files and processes of one instant. The sandbox
goes on; what it holds is not changed. The checkpoint is a node of the sandbox's tree,
below the one it stands on.

In the background it becomes durable: it then outlives the daemon and the machine. With
--durable the command returns when that is so; --no-durable leaves it in memory alone.
With --async it returns as soon as the processes run again.

With --explain everything that the checkpoint holds is listed, by process and kind, with
the bytes that were copied for it and the time that each stage took. What belongs to the
whole sandbox comes first.`,
		Example: `  sandtree checkpoint try --name before-upgrade
  sandtree checkpoint --async try
  sandtree checkpoint --durable try --name release
  sandtree checkpoint --explain try
  sandtree checkpoint rm try before-upgrade`,
		Args:              checkpointArgs(&o),
		ValidArgsFunction: inv.completeSandbox,
		RunE: inv.withDaemon(func(ctx context.Context, c *client.Client, args []string) error {
			if err := client.CheckStandbys(standby); err != nil {
				return err // before a checkpoint is taken
			}
			sb := c.SandboxHandle(args[0])
			take := func() (*client.Checkpoint, []client.CapturedItem, error) {
				if explain {
					return sb.ExplainedCheckpoint(ctx, o)
				}
				cp, err := sb.CheckpointWith(ctx, o)
				return cp, nil, err
			}
			cp, items, err := take()
			if err != nil {
				return err
			}
			if standby > 0 {
				if err := cp.Standby(ctx, standby); err != nil {
					return err
				}
			}
			if explain {
				return inv.show(explained{&cp.CheckpointInfo, items}, func(w io.Writer) { writeExplained(w, cp, items) })
			}
			return inv.show(cp, func(w io.Writer) {
				fmt.Fprintf(w, "%s  frozen %s, %s of memory\n", cp.ID, formatNS(cp.FrozenNS), formatBytes(cp.DirtyBytes))
			})
		}),
	}
	f := cmd.Flags()
	f.StringVar(&o.Name, "name", "", "name of the checkpoint, unique within the sandbox")
	f.BoolVar(&o.Async, "async", false, "return when the processes run again; the rest follows")
	f.BoolVar(&o.Durable, "durable", false, "return when the checkpoint is durable")
	f.BoolVar(&o.NotDurable, "no-durable", false, "do not make it durable")
	f.BoolVar(&explain, "explain", false, "list everything that it holds")
	f.IntVar(&standby, "standby", 0, "keep so many bodies of it ready, for rollbacks and forks to come")
	cmd.AddCommand(inv.checkpointRmCmd(), inv.checkpointStandbyCmd(), inv.checkpointWaitCmd(), inv.checkpointVerifyCmd())
	return cmd
}

// checkpointArgs refuses flags that contradict each other, before a daemon is
// started for them.
func checkpointArgs(o *client.CheckpointOptions) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case o.Durable && o.NotDurable:
			return fault.New(fault.Invalid, "--durable and --no-durable exclude each other")
		case o.Durable && o.Async:
			return fault.New(fault.Invalid, "--durable and --async exclude each other").
				WithHint("checkpoint wait --durable waits later for what --async has taken")
		}
		return exactly(1)(cmd, args)
	}
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
