package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/sandtree/sandtree/client"
)

// withDaemon makes a command's body of one that needs the daemon, which is
// started when it is not running.
func (inv *invocation) withDaemon(body func(ctx context.Context, c *client.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := inv.connect(cmd.Context())
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		return body(cmd.Context(), c, args)
	}
}

// connect returns a client of the chosen daemon, and starts the daemon when
// it is not running.
func (inv *invocation) connect(ctx context.Context) (*client.Client, error) {
	c, err := client.Dial(inv.socketPath())
	if err == nil || client.KindOf(err) != client.Unavailable {
		return c, err
	}
	if err := inv.startDaemon(ctx); err != nil {
		return nil, err
	}
	return client.Dial(inv.socketPath())
}
