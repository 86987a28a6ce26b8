package cli

import (
	"context"
	"fmt"
	"github.com/sandtree/sandtree/client"
	"io"

	"github.com/spf13/cobra"
)

func (inv *invocation) diffCmd() *cobra.Command {
	var sandbox string
	cmd := &cobra.Command{
		Use:   "diff A B",
		Short: "List the files that differ between two states",
		Long: `List the files that differ between two checkpoints of one tree, or between a checkpoint
and the live state, for which the sandbox is named. A line is A (added), M (changed)
or D (deleted) and a path. Checkpoints are named as in fork.`,
		Example:           "  sandtree diff try/before-upgrade try\n  sandtree diff --sandbox try before after",
		Args:              exactly(2),
		ValidArgsFunction: inv.completeSandbox,
		RunE: inv.withDaemon(func(ctx context.Context, c *client.Client, args []string) error {
			all, err := c.Diff(ctx, args[0], args[1], sandbox)
			if err != nil {
				return err
			}
			return inv.show(all, func(w io.Writer) {
				for _, ch := range all {
					fmt.Fprintln(w, ch.Kind, printable(ch.Path))
				}
			})
		}),
	}
	cmd.Flags().StringVar(&sandbox, "sandbox", "", "sandbox in whose tree names of checkpoints are looked up")
	_ = cmd.RegisterFlagCompletionFunc("sandbox", inv.completeSandbox)
	return cmd
}
