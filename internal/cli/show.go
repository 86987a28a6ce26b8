package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandtree/sandtree/client"
)

func (inv *invocation) showCmd() *cobra.Command {
	return &cobra.Command{
		Use:               "show SANDBOX",
		Short:             "Describe a sandbox",
		Long:              `Describe a sandbox: template, limits, where it stands in its checkpoint tree.`,
		Example:           "  sandtree show try",
		Args:              exactly(1),
		ValidArgsFunction: inv.completeSandbox,
		RunE: inv.withDaemon(func(ctx context.Context, c *client.Client, args []string) error {
			sb, err := c.Sandbox(ctx, args[0])
			if err != nil {
				return err
			}
			return inv.show(sb, func(w io.Writer) {
				facts(w,
					"id", sb.ID, "name", sb.Name, "state", sb.State, "lost because", sb.LostReason, "because", sb.StateReason,
					"template", sb.Template, "hostname", sb.Hostname, "created", sb.Created.Local().Format(time.DateTime),
					"limits", limitText(sb.Resources), "env", envText(sb.Env), "rollbacks", sb.Generation,
					"at", sb.At, "forked from", sb.ForkedFrom, "start session", sb.StartSession)
			})
		}),
	}
}

// facts writes pairs of a label and a value, one a line; empty values are
// left out.
func facts(w io.Writer, pairs ...any) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for i := 0; i+1 < len(pairs); i += 2 {
		if v := fmt.Sprint(pairs[i+1]); v != "" {
			fmt.Fprintf(t, "%s\t%s\n", pairs[i], printable(v))
		}
	}
	_ = t.Flush()
}

// limitText says what bounds a sandbox, or nothing.
func limitText(r client.Resources) string {
	s := ""
	add := func(bounded bool, format string, a ...any) {
		if bounded {
			if s != "" {
				s += ", "
			}
			s += fmt.Sprintf(format, a...)
		}
	}
	add(r.MemoryBytes > 0, "memory %s", formatBytes(r.MemoryBytes))
	add(r.CPUs > 0, "cpus %v", r.CPUs)
	add(r.PIDs > 0, "pids %d", r.PIDs)
	add(r.DiskBytes > 0, "disk %s", formatBytes(r.DiskBytes))
	return s
}

func envText(env map[string]string) string {
	s := ""
	for _, k := range slices.Sorted(maps.Keys(env)) {
		if s != "" {
			s += " "
		}
		s += k + "=" + env[k]
	}
	return s
}
