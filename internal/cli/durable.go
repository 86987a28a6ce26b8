package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/unnamed"
)

func (inv *invocation) checkpointWaitCmd() *cobra.Command {
	var durable bool
	cmd := &cobra.Command{
		Use:   "wait CHECKPOINT",
		Short: "Wait for a checkpoint",
		Long: `Wait until a checkpoint that was taken with --async is finished, or, with --durable,
until it is durable. One that was taken with --no-durable, or could not be made
durable, is made so then. The checkpoint is an id or SANDBOX/NAME.`,
		Example: "  sandtree checkpoint wait --durable try/release",
		Args:    exactly(1),
		RunE: inv.withDaemon(func(ctx context.Context, c *client.Client, args []string) error {
			wait := c.WaitFinished
			if durable {
				wait = c.WaitDurable
			}
			cp, err := wait(ctx, args[0])
			if err != nil {
				return err
			}
			return inv.show(cp, func(w io.Writer) { fmt.Fprintln(w, cp.ID) })
		}),
	}
	cmd.Flags().BoolVar(&durable, "durable", false, "wait until it is durable")
	return cmd
}

func (inv *invocation) checkpointVerifyCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "verify CHECKPOINT|SANDBOX",
		Short: "Read durable checkpoints and compare every checksum",
		Long: `Read all that a durable checkpoint has on disk, or all of a sandbox's durable
checkpoints, compare every checksum and follow every reference. What is broken is
listed, and the exit code is 1 then.`,
		Example:           "  sandtree checkpoint verify try",
		Args:              exactly(1),
		ValidArgsFunction: inv.completeSandbox,
		RunE: inv.withDaemon(func(ctx context.Context, c *client.Client, args []string) error {
			v, err := c.SandboxHandle(args[0]).Verify(ctx)
			if isNotFound(err) {
				v, err = c.Verify(ctx, args[0])
			}
			if err != nil {
				return err
			}
			err = inv.show(v, func(w io.Writer) {
				for _, p := range v.Problems {
					fmt.Fprintf(w, "%s  %s\n", p.Checkpoint, printable(p.What))
				}
				if len(v.Problems) == 0 {
					fmt.Fprintf(w, "%d checkpoints are whole\n", len(v.Checkpoints))
				}
			})
			if err == nil && len(v.Problems) > 0 {
				err = fault.New(fault.Internal, "verify: %d of %d checkpoints have something broken", brokenOf(v), len(v.Checkpoints))
			}
			return err
		}),
	}
}

func brokenOf(v client.VerifyResult) int {
	ids := map[string]bool{}
	for _, p := range v.Problems {
		ids[p.Checkpoint] = true
	}
	return len(ids)
}

func isNotFound(err error) bool { return client.KindOf(err) == client.NotFound }

func (inv *invocation) exportCmd() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "export SANDBOX|CHECKPOINT -o FILE",
		Short: "Write durable checkpoints to a file",
		Long: `Write a sandbox's durable checkpoints, the whole tree, or one checkpoint to a file. It
can be imported where a template has the same layers, on this machine or on another one with
the same kernel and processor. FILE may be - for the standard output.`,
		Example:           "  sandtree export try -o try.sandtree\n  sandtree export try/release -o - | ssh other sandtree import -",
		Args:              exactly(1),
		ValidArgsFunction: inv.completeSandbox,
		RunE: inv.withDaemon(func(ctx context.Context, c *client.Client, args []string) error {
			if output == "" {
				return fault.New(fault.Invalid, "export: no file is named").WithHint("-o FILE says which, -o - means the standard output")
			}
			if output == "-" {
				if onTerminal(inv.out) {
					return fault.New(fault.Invalid, "export: a terminal is no place for it").WithHint("-o FILE")
				}
				return c.Export(ctx, args[0], inv.out)
			}
			return exportTo(ctx, c, args[0], output)
		}),
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "the file, or - for the standard output")
	return cmd
}

// exportTo leaves either the whole file or none, and never half of one under
// its name.
func exportTo(ctx context.Context, c *client.Client, source, path string) error {
	if st, err := os.Stat(path); err == nil && !st.Mode().IsRegular() {
		return exportInto(ctx, c, source, path)
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return localError(err)
	}
	defer func() { _ = dir.Close() }()
	f, err := unnamed.Create(dir)
	if err != nil {
		return localError(err)
	}
	defer func() { _ = f.Close() }()
	if err := c.Export(ctx, source, f); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return localError(err)
	}
	return localError(f.Place(filepath.Base(path)))
}

// exportInto writes to what is no regular file, such as a pipe, and stays.
func exportInto(ctx context.Context, c *client.Client, source, path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return localError(err)
	}
	err = c.Export(ctx, source, f)
	if e := f.Close(); err == nil {
		err = localError(e)
	}
	return err
}

func (inv *invocation) importCmd() *cobra.Command {
	var template, name string
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Make a sandbox of an exported file",
		Long: `Make a sandbox, with its checkpoints, of a file that export wrote. The sandbox stands
still at the youngest of them; the next command in it makes it run on. Its limits and
variables are the template's: those of the exported sandbox are not in the file. A file that this machine
cannot run is refused, with the difference.`,
		Example: "  sandtree import try.sandtree --name again\n  sandtree import - < try.sandtree",
		Args:    exactly(1),
		RunE: inv.withDaemon(func(ctx context.Context, c *client.Client, args []string) error {
			in := inv.in
			if args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return localError(err)
				}
				defer func() { _ = f.Close() }()
				in = f
			}
			sb, err := c.Import(ctx, in, template, name)
			if err != nil {
				return err
			}
			return inv.show(sb, func(w io.Writer) { fmt.Fprintln(w, sb.ID) })
		}),
	}
	f := cmd.Flags()
	f.StringVar(&template, "template", "", "a template with the same layers (default: debian)")
	f.StringVar(&name, "name", "", "name of the sandbox")
	return cmd
}
