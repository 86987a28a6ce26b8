package cli

import (
	"context"
	"errors"
	"fmt"
	"github.com/sandtree/sandtree/client"
	"io"

	"github.com/spf13/cobra"
)

// removed is what --json prints of a thing that was removed.
type removed struct {
	ID string `json:"id"`
}

func (inv *invocation) rmCmd() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "rm [-f] SANDBOX…",
		Short: "Remove sandboxes with all their checkpoints",
		Long: `Remove sandboxes: their processes, files, checkpoints and logs. A sandbox in which a
command runs is refused without -f. Forks of it go on.`,
		Example:           "  sandtree rm try\n  sandtree rm -f $(sandtree ls --json | jq -r '.[].id')",
		Args:              atLeast(1),
		ValidArgsFunction: inv.completeSandboxes,
		RunE: inv.withDaemon(func(ctx context.Context, c *client.Client, args []string) error {
			// Each is tried, so that one that cannot go does not keep the others.
			var (
				gone []removed
				errs []error
			)
			for _, ref := range args {
				sb, err := c.Sandbox(ctx, ref)
				if err == nil {
					err = sb.Remove(ctx, force)
				}
				if err != nil {
					errs = append(errs, err)
					continue
				}
				gone = append(gone, removed{sb.ID})
			}
			if len(gone) > 0 {
				if err := inv.showRemoved(gone, len(args)); err != nil {
					return err
				}
			}
			return errors.Join(errs...)
		}),
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "remove also what runs")
	return cmd
}

// showRemoved prints what was removed: an object if one thing was named, an
// array if several were.
func (inv *invocation) showRemoved(gone []removed, asked int) error {
	var v any = gone
	if asked == 1 {
		v = gone[0]
	}
	return inv.show(v, func(w io.Writer) {
		for _, g := range gone {
			fmt.Fprintln(w, g.ID)
		}
	})
}
