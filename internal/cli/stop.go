package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/host"
	"github.com/sandtree/sandtree/internal/host/control"
)

func (inv *invocation) stopCmd() *cobra.Command {
	var now bool
	cmd := &cobra.Command{
		Use:   "stop",
		Short: "Stop the daemon",
		Long: `Stop the daemon of the state directory, or of --socket, and wait until it has ended. Its
sandboxes are hibernated: the next daemon has them again, as they were, when they are first
used. What could not be kept is listed, and the exit code is 9 then: processes that cannot
be captured, checkpoints that could not be written, but not those that were to be in memory
alone. With --now they end at once, and come back at their last durable checkpoints. What
the daemon made on the machine is removed, but the state directory. Without a daemon this
fails (exit code 10).`,
		Example: "  sandtree stop\n  sandtree --state /srv/sandtree stop --now",
		Args:    exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			state, err := inv.chosenState(cmd.Context())
			if err != nil {
				return err
			}
			s, err := host.Stop(cmd.Context(), state, now)
			if err != nil {
				return err
			}
			v := struct {
				StateDirectory string         `json:"state_directory"`
				PID            int            `json:"pid"`
				Hibernated     int            `json:"hibernated"`
				Lost           []control.Loss `json:"lost"`
			}{state, s.PID, 0, []control.Loss{}}
			if s.Report != nil {
				v.Hibernated, v.Lost = s.Report.Hibernated, append(v.Lost, s.Report.Lost...)
			}
			err = inv.show(v, func(w io.Writer) {
				fmt.Fprintf(w, "stopped process %d\n", v.PID)
				if v.Hibernated > 0 {
					fmt.Fprintf(w, "hibernated %d sandboxes\n", v.Hibernated)
				}
				for _, l := range v.Lost {
					fmt.Fprintf(w, "lost of %s: %s\n", printable(l.Name), printable(l.What))
				}
			})
			if err == nil {
				err = losses(v.Lost)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&now, "now", false, "do not hibernate sandboxes")
	return cmd
}

// losses is the error of a stop that has lost what nobody wished to lose; nil if
// it has not.
func losses(all []control.Loss) error {
	var names []string
	for _, l := range all {
		if n := printable(l.Name); !l.Wished && !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return fault.New(fault.Lost, "the daemon has ended, and states of %d sandboxes are lost: %s", len(names), strings.Join(names, ", ")).
		WithHint("a checkpoint tells what cannot be captured while there is time to end it: sandtree checkpoint SANDBOX")
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
