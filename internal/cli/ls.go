package cli

import (
	"context"
	"github.com/sandtree/sandtree/client"
	"time"

	"github.com/spf13/cobra"
)

func (inv *invocation) lsCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list", "ps"},
		Short:   "List the sandboxes",
		Long:    `List the sandboxes, oldest first.`,
		Example: "  sandtree ls\n  sandtree ls --json | jq -r '.[].id'",
		Args:    exactly(0),
		RunE: inv.withDaemon(func(ctx context.Context, c *client.Client, _ []string) error {
			all, err := c.Sandboxes(ctx)
			if err != nil {
				return err
			}
			now := time.Now()
			return inv.showTable(all, "ID NAME TEMPLATE STATE AGE AT", func(row func(...any)) {
				for _, s := range all {
					row(s.ID, s.Name, s.Template, s.State, formatAge(s.Created, now), s.At)
				}
			})
		}),
	}
}
