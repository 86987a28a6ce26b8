package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/fault"
)

func (inv *invocation) waitCmd() *cobra.Command {
	var (
		session string
		timeout time.Duration
	)
	cmd := &cobra.Command{
		Use:   "wait SANDBOX",
		Short: "Wait until a sandbox's commands have ended",
		Long: `Wait until no command runs in a sandbox, or until one session has ended, and print how
the last one ended. Exit code 124 if --timeout passed first.`,
		Example:           "  sandtree wait try\n  sandtree wait --session se-4t2kq7 --timeout 1m try",
		Args:              exactly(1),
		ValidArgsFunction: inv.completeSandbox,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			c, err := inv.connect(ctx)
			if err != nil {
				return err
			}
			defer func() { _ = c.Close() }()
			if timeout > 0 { // for its commands: the daemon may have to start first
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, timeout)
				defer cancel()
			}
			r, err := c.SandboxHandle(args[0]).Wait(ctx, session)
			// The daemon knows the limit, too, and may be the first to tell.
			if timeout > 0 && err != nil && (client.KindOf(err) == client.Deadline || errors.Is(ctx.Err(), context.DeadlineExceeded)) {
				what := "commands still run in it"
				if session != "" {
					what = "session " + session + " still runs"
				}
				return fault.New(fault.Deadline, "wait for sandbox %q: %s after %s", args[0], what, timeout).
					WithHint("sandtree sessions %s shows what runs", args[0])
			}
			if err != nil {
				return err
			}
			return inv.show(r, func(w io.Writer) {
				if r.Session != nil {
					fmt.Fprintln(w, r.Session.ID, sessionStatus(*r.Session))
				} else {
					fmt.Fprintln(w, r.ID, r.State)
				}
			})
		},
	}
	cmd.Flags().StringVar(&session, "session", "", "wait for this session alone")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "give up after this time")
	return cmd
}
