package cli

import (
	"context"
	"fmt"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/cli/bench"
	"github.com/sandtree/sandtree/internal/fault"
)

func (inv *invocation) benchCmd() *cobra.Command {
	cfg := bench.Config{DirtyFiles: 10}
	heap, dirty := byteSize(100<<20), byteSize(2<<20)
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure this machine, with the floors beside",
		Long: `Measure what a user waits for, and beside each figure its floor: the raw system calls
that no implementation can do without, taken in the same run. The figures are of a
sandbox with bash and a python with a heap, part of which changes between checkpoints.
Exit code 1 if a figure could not be taken.`,
		Example: "  sandtree bench\n  sandtree bench -n 200 --neighbour --json",
		Args:    exactly(0),
		RunE: inv.withDaemon(func(ctx context.Context, c *client.Client, _ []string) error {
			if cfg.N < 1 || cfg.DirtyFiles < 0 || dirty < 4096 || heap < dirty {
				return fault.New(fault.Invalid, "bench: -n must be at least 1, --dirty 4K, and --heap as much as --dirty")
			}
			scratch, err := inv.scratch()
			if err != nil {
				return err
			}
			defer func() { _ = os.RemoveAll(scratch) }()
			cfg.Scratch, cfg.HeapBytes, cfg.DirtyBytes = scratch, int64(heap), int64(dirty)
			report, done := inv.progress()
			cfg.OnStart = func(name string) { report(client.Progress{Stage: name}) }
			results, err := bench.Run(ctx, c, cfg)
			done()
			if err != nil {
				return err
			}
			return inv.showBench(results)
		}),
	}
	f := cmd.Flags()
	f.IntVarP(&cfg.N, "count", "n", 50, "how often each figure is taken")
	f.StringVar(&cfg.Template, "template", "", `template with bash and python3 (default "debian")`)
	f.Var(&heap, "heap", "heap of the process that is checkpointed")
	f.Var(&dirty, "dirty", "how much of it changes between checkpoints")
	f.IntVar(&cfg.DirtyFiles, "files", cfg.DirtyFiles, "files of 4 KiB that change between checkpoints")
	f.BoolVar(&cfg.Neighbour, "neighbour", false, "keep another sandbox busy meanwhile")
	return cmd
}

// scratch makes a directory on the disk of the state directory.
func (inv *invocation) scratch() (string, error) {
	dir, err := os.MkdirTemp(inv.state, "bench-")
	if err != nil {
		return "", fault.New(fault.Permission, "bench: %w", err).WithHint("run it as root, on the daemon's machine")
	}
	return dir, nil
}

func (inv *invocation) showBench(results []bench.Result) error {
	v := struct {
		Results []bench.Result `json:"results"`
	}{results}
	failed := 0
	err := inv.showTable(v, "NAME P50/MS P95/MS P99/MS FLOOR/MS RATIO N WHAT", func(row func(...any)) {
		ms := func(f float64) string { return strconv.FormatFloat(f, 'f', 2, 64) }
		for _, r := range results {
			if r.Error != "" {
				row(r.Name, "", "", "", "", "", "", r.Error)
				continue
			}
			row(r.Name, ms(r.P50), ms(r.P95), ms(r.P99), ms(r.Floor), fmt.Sprintf("%.1f×", r.P50/r.Floor), r.N, r.About)
		}
	})
	for _, r := range results {
		if r.Error != "" {
			failed++
		}
	}
	if err == nil && failed > 0 {
		err = fault.New(fault.Internal, "bench: %d of %d figures could not be taken", failed, len(results))
	}
	return err
}

// benchTargetCmd is the process that the floors of bench read and fork.
func (inv *invocation) benchTargetCmd() *cobra.Command {
	return &cobra.Command{
		Use:    bench.TargetCommand + " BYTES",
		Hidden: true,
		Args:   exactly(1),
		RunE: func(_ *cobra.Command, args []string) error {
			n, err := strconv.Atoi(args[0])
			if err != nil || n < 1 {
				return fault.New(fault.Invalid, "%q is no number of bytes", args[0])
			}
			return bench.Target(n, inv.in, inv.out)
		},
	}
}
