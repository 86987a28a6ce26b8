package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/fault"
)

// forked is one copy as --json prints it.
type forked struct {
	client.SandboxInfo
	Sessions  []client.SessionInfo `json:"sessions"` // that go on in it
	ElapsedNS int64                `json:"elapsed_ns"`
	Reseed    *client.Reseed       `json:"reseed,omitempty"`
}

func (inv *invocation) forkCmd() *cobra.Command {
	var (
		n     int
		names []string
		o     client.ForkOptions
	)
	cmd := &cobra.Command{
		Use:   "fork SANDBOX|CHECKPOINT",
		Short: "Make copies of a sandbox that go on by themselves",
		Long: `Make new sandboxes from a checkpoint, or from a sandbox, of which a checkpoint is taken
first. A checkpoint is named by its id, by its name if only one sandbox has it, or as
SANDBOX/CHECKPOINT. Each copy has the same processes; neither sees the other's writes.

Copies are alike in all that programs remember: random generators, keys, ids. With --reseed
each gets an identity of its own, as all copies of a template made with --reseed do. Its
/etc/machine-id and /etc/hostname are written anew, where they are files. Then its
/etc/sandtree/reseed is run, if there is one, as root, while the copy's programs run. It is to do what else the
programs need, and finds in its environment SANDTREE_SANDBOX, SANDTREE_NAME, SANDTREE_HOSTNAME,
SANDTREE_TEMPLATE, SANDTREE_CHECKPOINT, SANDTREE_COPY (1 for the first copy), SANDTREE_MACHINE_ID, and SANDTREE_SEED
(64 random hexadecimal digits). If it ends with another status than 0, or takes longer than
--reseed-timeout, that is reported and the exit code is 2; the copies stay. It runs as a session of the copy.`,
		Example:           "  sandtree fork try -n 8\n  sandtree fork try/before-upgrade --name again",
		Args:              exactly(1),
		ValidArgsFunction: inv.completeSandbox,
		RunE: func(cmd *cobra.Command, args []string) error {
			if n < 1 {
				return fault.New(fault.Invalid, "-n %d: at least one copy is needed", n)
			}
			if len(names) > 0 && len(names) != n {
				return fault.New(fault.Invalid, "--name is given %d times for %d copies", len(names), n).
					WithHint("give it once for each copy, or not at all")
			}
			c, err := inv.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer func() { _ = c.Close() }()
			o.Count, o.Names = n, names
			r, err := c.ForkWith(cmd.Context(), args[0], o)
			if err != nil {
				return err
			}
			all := make([]forked, len(r.Sandboxes))
			for i, s := range r.Sandboxes {
				all[i].SandboxInfo = s.SandboxInfo
				all[i].Sessions = []client.SessionInfo{}
				for _, k := range r.Sessions[i] {
					all[i].Sessions = append(all[i].Sessions, k.SessionInfo)
				}
				if i < len(r.ElapsedNS) {
					all[i].ElapsedNS = r.ElapsedNS[i]
				}
				if i < len(r.Reseeds) {
					all[i].Reseed = &r.Reseeds[i]
				}
			}
			err = inv.showTable(all, "ID NAME TIME", func(row func(...any)) {
				for _, f := range all {
					row(f.ID, f.Name, formatNS(f.ElapsedNS))
				}
			})
			for _, s := range r.Reseeds {
				if err == nil && s.Failed() {
					err = reseedFailed(s)
				}
			}
			return err
		},
	}
	cmd.Flags().IntVarP(&n, "count", "n", 1, "number of copies")
	cmd.Flags().StringArrayVar(&names, "name", nil, "name of a copy; once for each")
	cmd.Flags().BoolVar(&o.Reseed, "reseed", false, "give each copy an identity of its own: run its /etc/sandtree/reseed")
	cmd.Flags().DurationVar(&o.ReseedTimeout, "reseed-timeout", 0, "how long that may take (default 30s)")
	return cmd
}

// reseedFailed is the error of a copy whose hook did not end well.
func reseedFailed(r client.Reseed) error {
	text := fmt.Sprintf("/etc/sandtree/reseed of copy %s ended with status %d", r.Sandbox, r.ExitCode)
	if r.Reason != "" {
		text += " (" + r.Reason + ")"
	}
	if r.Output != "" {
		text += "; the end of its output:\n  " + strings.ReplaceAll(r.Output, "\n", "\n  ")
	}
	return fault.New(fault.Invalid, "%s", text).WithHint("the copies stay; run it again in that one")
}
