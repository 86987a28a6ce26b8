package cli

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandtree/sandtree/client"
)

func (inv *invocation) statsCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "stats SANDBOX",
		Short: "Show what a sandbox uses",
		Long: `Show what a sandbox uses at this moment: CPU, memory, processes, disk, checkpoints, and what those
take in memory, beside what those of its template take, and those of all templates of their budget (serve
--checkpoint-memory). A sandbox that stands still goes on doing so; its disk is what its
checkpoints added to that.`,
		Example:           "  sandtree stats try",
		Args:              exactly(1),
		ValidArgsFunction: inv.completeSandbox,
		RunE: inv.withDaemon(func(ctx context.Context, c *client.Client, args []string) error {
			s, err := c.SandboxHandle(args[0]).Stats(ctx)
			if err != nil {
				return err
			}
			return inv.show(s, func(w io.Writer) {
				facts(w,
					"id", s.ID,
					"state", s.State,
					"cpu", time.Duration(s.CPUNS).Round(time.Millisecond),
					"memory", ofMax(formatBytes(s.MemoryBytes), s.MemoryMaxBytes > 0, formatBytes(s.MemoryMaxBytes)),
					"processes", ofMax(fmt.Sprint(s.PIDs), s.PIDsMax > 0, fmt.Sprint(s.PIDsMax)),
					"disk", ofMax(formatBytes(s.DiskBytes), s.DiskMaxBytes > 0, formatBytes(s.DiskMaxBytes)),
					"checkpoints", fmt.Sprintf("%d, %s", s.Checkpoints, formatBytes(s.CheckpointBytes)),
					"their memory", fmt.Sprintf("%s; all of the template %s, of all templates %s of %s", formatBytes(s.CheckpointMemoryBytes),
						formatBytes(s.TemplateCheckpointMemoryBytes), formatBytes(s.AllCheckpointMemoryBytes), formatBytes(s.TemplateCheckpointMemoryMaxBytes)),
					"killed for memory", s.OOMKills)
			})
		}),
	}
}

func ofMax(used string, bounded bool, most string) string {
	if !bounded {
		return used
	}
	return used + " of " + most
}
