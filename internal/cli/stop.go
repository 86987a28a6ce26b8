package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/host"
)

func (inv *invocation) stopCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "stop",
		Short: "Stop the daemon",
		Long: `Stop the daemon of the state directory, or of --socket, and wait until it has ended. Its
sandboxes end, and what it made on the machine is removed, but the state directory: images
and templates are there for the next. Without a daemon this fails (exit code 10).`,
		Example: "  sandtree stop\n  sandtree --state /srv/sandtree stop",
		Args:    exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			state, err := inv.chosenState(cmd.Context())
			if err != nil {
				return err
			}
			pid, err := host.Stop(cmd.Context(), state)
			if err != nil {
				return err
			}
			v := struct {
				StateDirectory string `json:"state_directory"`
				PID            int    `json:"pid"`
			}{state, pid}
			return inv.show(v, func(w io.Writer) { fmt.Fprintf(w, "stopped process %d\n", pid) })
		},
	}
}

// chosenState is the state directory of the chosen daemon.
func (inv *invocation) chosenState(ctx context.Context) (string, error) {
	if inv.socket == "" {
		return inv.state, nil
	}
	c, err := client.Dial(inv.socket)
	if err != nil {
		return "", err
	}
	defer func() { _ = c.Close() }()
	i, err := c.Info(ctx)
	return i.StateDirectory, err
}
