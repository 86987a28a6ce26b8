package cli

import (
	"github.com/spf13/cobra"

	"github.com/sandtree/sandtree/internal/node"
)

// nodeCmd is the unprivileged part of the daemon; the host starts it.
func (inv *invocation) nodeCmd() *cobra.Command {
	return &cobra.Command{
		Use:    "node",
		Short:  "Part of the daemon, started by serve",
		Hidden: true,
		Args:   exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return node.Main(cmd.Context(), node.Config{Log: inv.logger(false).With("part", "node")})
		},
	}
}
