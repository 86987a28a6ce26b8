package cli

import (
	"github.com/spf13/cobra"

	"github.com/sandtree/sandtree/internal/fault"
)

// loginShell starts the best shell that an image has.
var loginShell = []string{"/bin/sh", "-c", "command -v bash >/dev/null 2>&1 && exec bash -l; exec sh -l"}

func (inv *invocation) shellCmd() *cobra.Command {
	var flags execFlags
	cmd := &cobra.Command{
		Use:   "shell SANDBOX",
		Short: "Open a terminal in a sandbox",
		Long: `Open a login shell on a terminal in a sandbox.

ctrl-p ctrl-q leaves it running; "sandtree sessions" shows its id, and
"sandtree attach ID" comes back. After a rollback the terminal is the checkpoint's.
The exit code is the shell's own; 125 if sandtree failed.`,
		Example:           "  sandtree shell try\n  sandtree shell --user nobody --workdir /tmp try",
		Args:              exactly(1),
		Annotations:       map[string]string{exitsAsProgram: ""},
		ValidArgsFunction: inv.completeSandbox,
		RunE: func(cmd *cobra.Command, args []string) error {
			if inv.json {
				return fault.New(fault.Invalid, "shell is a terminal and prints no JSON").WithHint("use: sandtree exec --json %s -- COMMAND", args[0])
			}
			c, err := inv.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer func() { _ = c.Close() }()
			flags.interactive, flags.tty = true, true
			return inv.execIn(cmd.Context(), c.SandboxHandle(args[0]), loginShell, flags)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&flags.user, "user", "u", "", "user inside: a name, or uid[:gid] (default: the template's)")
	f.StringVarP(&flags.dir, "workdir", "w", "", "directory to start in (default: the template's)")
	f.StringArrayVarP(&flags.env, "env", "e", nil, "set a variable, K=V; may be repeated")
	return cmd
}
