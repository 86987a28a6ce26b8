package cli

import (
	"github.com/spf13/cobra"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/fault"
)

// forked is one copy as --json prints it.
type forked struct {
	client.SandboxInfo
	ElapsedNS int64 `json:"elapsed_ns"`
}

func (inv *invocation) forkCmd() *cobra.Command {
	var (
		n     int
		names []string
	)
	cmd := &cobra.Command{
		Use:   "fork SANDBOX|CHECKPOINT",
		Short: "Make copies of a sandbox that go on by themselves",
		Long: `Make new sandboxes from a checkpoint, or from a sandbox, of which a checkpoint is taken
first. A checkpoint is named by its id, by its name if only one sandbox has it, or as
SANDBOX/CHECKPOINT. Each copy has the same processes; neither sees the other's writes.`,
		Example:           "  sandtree fork try -n 8\n  sandtree fork try/before-upgrade --name again",
		Args:              exactly(1),
		ValidArgsFunction: inv.completeSandbox,
		RunE: func(cmd *cobra.Command, args []string) error {
			if n < 1 {
				return fault.New(fault.Invalid, "-n %d: at least one copy is needed", n)
			}
			if len(names) > 0 && len(names) != n {
				return fault.New(fault.Invalid, "%d names for %d copies", len(names), n)
			}
			c, err := inv.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer func() { _ = c.Close() }()
			r, err := c.Fork(cmd.Context(), args[0], n, names...)
			if err != nil {
				return err
			}
			all := make([]forked, len(r.Sandboxes))
			for i, s := range r.Sandboxes {
				all[i].SandboxInfo = s.SandboxInfo
				if i < len(r.ElapsedNS) {
					all[i].ElapsedNS = r.ElapsedNS[i]
				}
			}
			return inv.showTable(all, "ID NAME TIME", func(row func(...any)) {
				for _, f := range all {
					row(f.ID, f.Name, formatNS(f.ElapsedNS))
				}
			})
		},
	}
	cmd.Flags().IntVarP(&n, "count", "n", 1, "number of copies")
	cmd.Flags().StringArrayVar(&names, "name", nil, "name of a copy; once for each")
	return cmd
}
