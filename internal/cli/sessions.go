package cli

import (
	"context"
	"github.com/sandtree/sandtree/client"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

func (inv *invocation) sessionsCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "sessions SANDBOX",
		Short: "List the commands of a sandbox",
		Long: `List the commands that run in a sandbox, and those that have ended, with their
sessions' ids, oldest first.`,
		Example:           "  sandtree sessions try",
		Args:              exactly(1),
		ValidArgsFunction: inv.completeSandbox,
		RunE: inv.withDaemon(func(ctx context.Context, c *client.Client, args []string) error {
			all, err := c.SandboxHandle(args[0]).Sessions(ctx)
			if err != nil {
				return err
			}
			now := time.Now()
			return inv.showTable(all, "ID PID TTY AGE STATUS ATTACHED COMMAND", func(row func(...any)) {
				for _, s := range all {
					row(s.ID, s.PID, yesNo(s.TTY), formatAge(s.Started, now), sessionStatus(s.SessionInfo), s.Attached, strings.Join(s.Argv, " "))
				}
			})
		}),
	}
}
