package cli

import (
	"context"
	"fmt"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/cli/bench"
	"github.com/sandtree/sandtree/internal/cli/bench/peer"
	"github.com/sandtree/sandtree/internal/cli/bench/subject"
	"github.com/sandtree/sandtree/internal/fault"
)

func (inv *invocation) benchCmd() *cobra.Command {
	cfg := bench.Config{Subject: subject.Config{DirtyFiles: 10, Threads: 5}}
	heap, dirty := byteSize(100<<20), byteSize(2<<20)
	peers := true
	var cmd *cobra.Command
	cmd = &cobra.Command{
		Use:   "bench",
		Short: "Measure this machine, with the floors beside",
		Long: `Measure what a user waits for, and beside each figure its floor: the raw system calls
that no implementation can do without, taken in the same run. The figures are of a
sandbox with bash, sleep and a python of five threads with a heap, part of which changes
between checkpoints. Where CRIU, runc or docker are installed (make bench-peers), they
are measured too. See also: sandtree bench growth.
Exit code 1 if a figure could not be taken.`,
		Example: "  sandtree bench\n  sandtree bench -n 200 --busy --json\n  sandtree bench --figure checkpoint_frozen --figure fork_100",
		Args:    exactly(0),
		RunE: inv.withDaemon(func(ctx context.Context, c *client.Client, _ []string) error {
			if cfg.N < 1 || cfg.Subject.DirtyFiles < 0 || dirty < 4096 || heap < dirty {
				return fault.New(fault.Invalid, "bench: -n must be at least 1, --dirty 4K, and --heap as much as --dirty")
			}
			scratch, err := inv.scratch()
			if err != nil {
				return err
			}
			defer func() { _ = os.RemoveAll(scratch) }()
			cfg.Scratch, cfg.Subject.HeapBytes, cfg.Subject.DirtyBytes = scratch, int64(heap), int64(dirty)
			report, done := inv.progress()
			defer done()
			cfg.OnStart = func(name string) { report(client.Progress{Stage: name}) }
			results, err := bench.Run(ctx, c, cfg)
			if err != nil {
				return err
			}
			var others []bench.Result
			if peers && (len(cfg.Only) == 0 || cmd.Flags().Changed("peers")) {
				others = bench.Peers(ctx, peer.Config{N: cfg.N, HeapBytes: int64(heap), Scratch: scratch, Cache: peer.CacheDirectory()}, cfg.OnStart)
			}
			done()
			return inv.showBench(results, others)
		}),
	}
	f := cmd.Flags()
	f.IntVarP(&cfg.N, "count", "n", 50, "how often each figure is taken")
	f.StringVar(&cfg.Subject.Template, "template", "", `template with bash and python3 (default "debian")`)
	f.StringArrayVar(&cfg.Only, "figure", nil, "take this figure alone (repeat it for more)")
	f.Var(&heap, "heap", "heap of the process that is checkpointed")
	f.Var(&dirty, "dirty", "how much of it changes between checkpoints")
	f.IntVar(&cfg.Subject.DirtyFiles, "files", cfg.Subject.DirtyFiles, "files of 4 KiB that change between checkpoints")
	f.BoolVar(&cfg.Neighbour, "neighbour", false, "keep a processor busy in another sandbox meanwhile")
	f.BoolVar(&cfg.Busy, "busy", false, "take figures again while other families work, output floods and images are written")
	f.BoolVar(&peers, "peers", peers, "measure CRIU, runc and docker too where they are installed")
	_ = cmd.RegisterFlagCompletionFunc("figure", cobra.FixedCompletions(bench.Names(), cobra.ShellCompDirectiveNoFileComp))
	cmd.AddCommand(inv.benchGrowthCmd())
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

func (inv *invocation) showBench(results, peers []bench.Result) error {
	v := struct {
		Results []bench.Result `json:"results"`
		Peers   []bench.Result `json:"peers,omitempty"`
	}{results, peers}
	failed := 0
	err := inv.showTable(v, "NAME P50/MS P95/MS P99/MS FLOOR/MS RATIO N WHAT", func(row func(...any)) {
		for _, r := range append(results, peers...) {
			row(benchRow(r)...)
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

// benchRow is a figure as a row of the table.
func benchRow(r bench.Result) []any {
	number := func(f float64) string { return strconv.FormatFloat(f, 'f', 2, 64) }
	ratio := func(a, b float64) string {
		if b <= 0 {
			return ""
		}
		return fmt.Sprintf("%.1f×", a/b)
	}
	switch {
	case r.Error != "":
		return []any{r.Name, "", "", "", "", "", "", r.Error}
	case r.MiB != 0:
		return []any{r.Name, number(r.MiB) + " MiB", "", "", number(r.FloorMiB) + " MiB", ratio(r.MiB, r.FloorMiB), r.N, r.About}
	case r.Floor == 0:
		return []any{r.Name, number(r.P50), number(r.P95), number(r.P99), "", "", r.N, r.About}
	}
	return []any{r.Name, number(r.P50), number(r.P95), number(r.P99), number(r.Floor), ratio(r.P50, r.Floor), r.N, r.About}
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

// benchWorkCmd is the program that bench runs inside and outside.
func (inv *invocation) benchWorkCmd() *cobra.Command {
	return &cobra.Command{
		Use:    bench.WorkCommand + " DIRECTORY",
		Hidden: true,
		Args:   exactly(1),
		RunE:   func(_ *cobra.Command, args []string) error { return bench.Work(args[0]) },
	}
}
