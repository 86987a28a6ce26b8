package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/fault"
)

func (inv *invocation) attachCmd() *cobra.Command {
	var noInput bool
	cmd := &cobra.Command{
		Use:   "attach SESSION|SANDBOX",
		Short: "Come back to a command that runs",
		Long: `Come back to a command that runs in a sandbox: its latest output is shown again,
and input goes to it. A sandbox stands for the only command that runs in it.

On a terminal ctrl-p ctrl-q leaves it running. Without one, signals that this command gets
are passed on, SIGTERM too; with --no-input they end this command alone. The exit code is the command's own; 125
if sandtree failed.`,
		Example:           "  sandtree attach se-4t2kq7\n  sandtree attach --no-input se-4t2kq7 | grep ready",
		Args:              exactly(1),
		Annotations:       map[string]string{exitsAsProgram: ""},
		ValidArgsFunction: inv.completeSession,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := inv.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer func() { _ = c.Close() }()
			return inv.attachTo(cmd.Context(), c, args[0], noInput)
		},
	}
	cmd.Flags().BoolVar(&noInput, "no-input", false, "look on, send nothing")
	return cmd
}

func (inv *invocation) attachTo(ctx context.Context, c *client.Client, ref string, noInput bool) error {
	id, err := sessionID(ctx, c, ref)
	if err != nil {
		return err
	}
	a, err := attached(ctx, func(ctx context.Context) (*client.Attachment, error) {
		return c.SessionHandle(id).Attach(ctx, client.AttachOptions{})
	})
	if err != nil {
		return err
	}
	s := streams{interactive: !noInput, tty: a.Session.TTY, onlooker: noInput, out: inv.out, err: inv.err}
	if s.tty && !onTerminal(inv.in) {
		s.interactive = false
	}
	if inv.json {
		return inv.execJSON(ctx, a, s)
	}
	end, err := inv.follow(ctx, a, s)
	if err != nil {
		return err
	}
	return inv.finish(end)
}

// sessionID returns a session's id as it is, and for a sandbox the id of the
// only session that runs in it.
func sessionID(ctx context.Context, c *client.Client, ref string) (string, error) {
	if strings.HasPrefix(ref, "se-") {
		return ref, nil
	}
	all, err := c.SandboxHandle(ref).Sessions(ctx)
	if err != nil {
		return "", err
	}
	var running []string
	for _, s := range all {
		if !s.Ended {
			running = append(running, s.ID)
		}
	}
	switch len(running) {
	case 1:
		return running[0], nil
	case 0:
		return "", fault.New(fault.NotFound, "sandbox %s: no command runs in it", ref).WithHint("start one with: sandtree shell %s", ref)
	}
	return "", fault.New(fault.Conflict, "sandbox %s: %d commands run in it", ref, len(running)).
		WithHint("name one of them: %s", strings.Join(running, ", "))
}

// sessionStatus says in a few words how a session stands.
func sessionStatus(s client.SessionInfo) string {
	switch {
	case !s.Ended:
		return "running"
	case s.Reason != "":
		return fmt.Sprintf("ended (%d, %s)", s.ExitCode, s.Reason)
	}
	return fmt.Sprintf("ended (%d)", s.ExitCode)
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
