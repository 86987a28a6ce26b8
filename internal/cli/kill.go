package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

func (inv *invocation) killCmd() *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:               "kill SESSION|SANDBOX",
		Short:             "Send a signal to a command in a sandbox",
		Long:              `Send a signal to the process group of a session. A sandbox stands for the only command that runs in it.`,
		Example:           "  sandtree kill se-4t2kq7\n  sandtree kill --signal HUP se-4t2kq7",
		Args:              exactly(1),
		ValidArgsFunction: inv.completeSession,
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := signalNumber(name)
			if err != nil {
				return err
			}
			c, err := inv.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer func() { _ = c.Close() }()
			id, err := sessionID(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			if err := c.SessionHandle(id).Kill(cmd.Context(), int(n), ""); err != nil {
				return err
			}
			v := struct {
				ID     string `json:"id"`
				Signal int    `json:"signal"`
			}{id, int(n)}
			return inv.show(v, func(w io.Writer) { fmt.Fprintln(w, id) })
		},
	}
	cmd.Flags().StringVarP(&name, "signal", "s", "TERM", "signal, by name or number")
	return cmd
}

// signalNumber reads "TERM", "SIGTERM", "term" or "15".
func signalNumber(s string) (unix.Signal, error) {
	if n, err := strconv.Atoi(s); err == nil {
		if n >= 1 && n <= 64 {
			return unix.Signal(n), nil
		}
	} else if n := unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(s), "SIG")); n != 0 {
		return n, nil
	}
	return 0, fault.New(fault.Invalid, "--signal %q is no signal", s).WithHint("names and numbers are in signal(7)")
}
