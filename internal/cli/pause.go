package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/sandtree/sandtree/client"
)

func (inv *invocation) pauseCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "pause SANDBOX",
		Short: "Make a sandbox stand still",
		Long: `Make a sandbox stand still. Its state is durable when the command returns, and a finished
body stays in memory while there is room, so that it runs on within a millisecond or
so. Whoever uses the sandbox next makes it run on: exec, shell, attach, input to a session.
A command that was running stands still too, and so does an exec that waits for it: it goes
on when somebody makes the sandbox run on, and its time limit runs meanwhile.`,
		Example:           "  sandtree pause try\n  sandtree resume try",
		Args:              exactly(1),
		ValidArgsFunction: inv.completeSandbox,
		RunE: inv.withDaemon(func(ctx context.Context, c *client.Client, args []string) error {
			return inv.showStill(c.SandboxHandle(args[0]).Pause(ctx))
		}),
	}
}

func (inv *invocation) hibernateCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "hibernate SANDBOX",
		Short: "Make a sandbox stand still, on disk alone",
		Long: `Make a sandbox stand still and leave nothing of it in memory: it costs disk only. Whoever
uses it next makes it run on, which takes as long as reading it takes.`,
		Example:           "  sandtree hibernate try\n  sandtree exec try -- true       # it runs again",
		Args:              exactly(1),
		ValidArgsFunction: inv.completeSandbox,
		RunE: inv.withDaemon(func(ctx context.Context, c *client.Client, args []string) error {
			return inv.showStill(c.SandboxHandle(args[0]).Hibernate(ctx))
		}),
	}
}

func (inv *invocation) showStill(sb *client.Sandbox, err error) error {
	if err != nil {
		return err
	}
	return inv.show(sb, func(w io.Writer) { fmt.Fprintf(w, "%s  %s at %s\n", sb.ID, sb.State, sb.At) })
}

func (inv *invocation) resumeCmd() *cobra.Command {
	return &cobra.Command{
		Use:               "resume SANDBOX",
		Short:             "Make a sandbox that stands still run on",
		Long:              `Make a sandbox that was paused or hibernated, or came back from disk, run on.`,
		Example:           "  sandtree resume try",
		Args:              exactly(1),
		ValidArgsFunction: inv.completeSandbox,
		RunE: inv.withDaemon(func(ctx context.Context, c *client.Client, args []string) error {
			r, err := c.SandboxHandle(args[0]).Resume(ctx)
			if err != nil {
				return err
			}
			return inv.show(r, func(w io.Writer) { fmt.Fprintf(w, "%s  %s after %s\n", r.ID, r.State, formatNS(r.ElapsedNS)) })
		}),
	}
}
