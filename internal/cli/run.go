package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/fault"
)

// createFlags are the flags of commands that make a sandbox.
type createFlags struct {
	template, name, hostname string
	limits                   limitFlags
}

func (f *createFlags) register(cmd *cobra.Command, inv *invocation) {
	fs := cmd.Flags()
	fs.StringVar(&f.template, "template", "", `template to create it from (default "debian")`)
	fs.StringVar(&f.name, "name", "", "name of the sandbox")
	fs.StringVar(&f.hostname, "hostname", "", "host name inside (default: the name or id)")
	f.limits.register(cmd)
	_ = cmd.RegisterFlagCompletionFunc("template", inv.completeTemplate)
}

// create makes the sandbox that the flags ask for.
func (f *createFlags) create(ctx context.Context, c *client.Client, env map[string]string) (*client.Sandbox, error) {
	r, err := f.limits.resources()
	if err != nil {
		return nil, err
	}
	return c.CreateSandbox(ctx, client.SandboxConfig{
		Template: f.template, Name: f.name, Hostname: f.hostname, Env: env, Resources: r,
	})
}

func (inv *invocation) runCmd() *cobra.Command {
	var (
		create createFlags
		exec   execFlags
		remove bool
	)
	cmd := &cobra.Command{
		Use:   "run [flags] -- [COMMAND [ARG…]]",
		Short: "Create a sandbox and run a program in it",
		Long: `Create a sandbox and run a program in it; without one, a shell.

The sandbox stays when the program has ended, unless --rm is given. The flags are those
of create and exec, and so are the exit codes: the program's own; 124 the timeout
passed; 125 sandtree failed; 126 the program cannot be executed; 127 it does not exist.`,
		Example: `  sandtree run -it --rm
  sandtree run --memory 512M --cpus 1 -- python3 -c 'print("hello")'
  sandtree run --template debian --env CI=1 --rm -- make test`,
		Annotations: map[string]string{exitsAsProgram: ""},
		RunE: func(cmd *cobra.Command, args []string) error {
			_, argv, err := dashed(cmd, args, 0)
			if err != nil {
				return err
			}
			if len(argv) == 0 {
				argv = loginShell
			}
			return inv.runIn(cmd.Context(), create, exec, remove, argv)
		},
	}
	create.register(cmd, inv)
	exec.register(cmd)
	cmd.Flags().BoolVar(&remove, "rm", false, "remove the sandbox when the program has ended")
	return cmd
}

func (inv *invocation) runIn(ctx context.Context, create createFlags, exec execFlags, remove bool, argv []string) (err error) {
	if remove && exec.detach {
		return fault.New(fault.Invalid, "--rm and --detach exclude each other")
	}
	if err := inv.checkTerminal(streams{interactive: exec.interactive, tty: exec.tty}); err != nil {
		return err
	}
	env, err := environment(exec.env)
	if err != nil {
		return err
	}
	c, err := inv.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	sb, err := create.create(ctx, c, env)
	if err != nil {
		return err
	}
	if remove {
		defer func() {
			// Also when the context was canceled: --rm is a promise.
			rmErr := sb.Remove(context.WithoutCancel(ctx), true)
			if rmErr != nil && kindOf(rmErr) != fault.NotFound {
				fmt.Fprintf(inv.err, "sandtree: remove %s: %v\n", sb.ID, rmErr)
			}
		}()
	} else {
		defer inv.mark(false, "sandbox "+named(sb.Name, sb.ID)+" stays")
	}
	return inv.execIn(ctx, sb, argv, exec)
}
