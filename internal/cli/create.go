package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
)

func (inv *invocation) createCmd() *cobra.Command {
	var (
		flags createFlags
		env   []string
	)
	cmd := &cobra.Command{
		Use:   "create [flags]",
		Short: "Create a sandbox",
		Long:  `Create a sandbox from a template and print its id.`,
		Example: `  sandtree create --name try
  sandtree create --template debian --memory 2G --cpus 2 --pids 512 --disk 10G --env CI=1`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			vars, err := environment(env)
			if err != nil {
				return err
			}
			c, err := inv.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer func() { _ = c.Close() }()
			sb, err := flags.create(cmd.Context(), c, vars)
			if err != nil {
				return err
			}
			return inv.show(sb, func(w io.Writer) { fmt.Fprintln(w, sb.ID) })
		},
	}
	flags.register(cmd, inv)
	cmd.Flags().StringArrayVarP(&env, "env", "e", nil, "set a variable for all commands, K=V; may be repeated")
	return cmd
}
