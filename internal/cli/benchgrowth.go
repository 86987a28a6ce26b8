package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/cli/bench/growth"
	"github.com/sandtree/sandtree/internal/cli/bench/plot"
	"github.com/sandtree/sandtree/internal/cli/bench/subject"
	"github.com/sandtree/sandtree/internal/fault"
)

func (inv *invocation) benchGrowthCmd() *cobra.Command {
	cfg := growth.Config{Subject: subject.Config{DirtyFiles: 10, Threads: 5}}
	heap, dirty := byteSize(100<<20), byteSize(2<<20)
	svg := ""
	cmd := &cobra.Command{
		Use:   "growth",
		Short: "Measure how times grow with trees, files, memory and processes",
		Long: `Measure how the times of checkpoint, rollback and fork grow along an axis, and which
stage grows. Axes: ` + strings.Join(growth.Names(), ", ") + `.
--max ends an axis early, in its own unit. All axes to their ends take half an hour or more.`,
		Example: "  sandtree bench growth --axis depth --max 50\n  sandtree bench growth --svg plots --json",
		Args:    exactly(0),
		RunE: inv.withDaemon(func(ctx context.Context, c *client.Client, _ []string) error {
			if cfg.Samples < 1 || cfg.Max < 0 || dirty < 4096 || heap < dirty {
				return fault.New(fault.Invalid, "bench growth: -n must be at least 1, --max 0, --dirty 4K, and --heap as much as --dirty")
			}
			if svg != "" { // before the work
				if err := os.MkdirAll(svg, 0o755); err != nil {
					return fault.New(fault.Invalid, "bench growth: --svg: %w", err)
				}
			}
			cfg.Subject.HeapBytes, cfg.Subject.DirtyBytes = int64(heap), int64(dirty)
			report, done := inv.progress()
			defer done()
			cfg.OnPlace = func(axis string, x, to int) {
				report(client.Progress{Stage: axis, Done: int64(x), Total: int64(to)})
			}
			curves, err := growth.Run(ctx, c, cfg)
			done()
			if err != nil {
				return err
			}
			if err := drawGrowth(svg, curves); err != nil {
				return err
			}
			return inv.showGrowth(curves)
		}),
	}
	f := cmd.Flags()
	f.StringArrayVar(&cfg.Axes, "axis", nil, "measure this axis alone (repeat it for more)")
	f.IntVar(&cfg.Max, "max", 0, "end each axis there (default: its full length)")
	f.IntVarP(&cfg.Samples, "count", "n", 5, "how often each time is taken at each place")
	f.StringVar(&cfg.Subject.Template, "template", "", `template with bash and python3 (default "debian")`)
	f.Var(&heap, "heap", "heap of the process that is checkpointed")
	f.Var(&dirty, "dirty", "how much of it changes between checkpoints")
	f.StringVar(&svg, "svg", "", "draw each axis as a file AXIS.svg in this directory")
	_ = cmd.RegisterFlagCompletionFunc("axis", cobra.FixedCompletions(growth.Names(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (inv *invocation) showGrowth(curves []growth.Curve) error {
	v := struct {
		Growth []growth.Curve `json:"growth"`
	}{curves}
	err := inv.show(v, func(w io.Writer) {
		for i, c := range curves {
			if i > 0 {
				fmt.Fprintln(w)
			}
			writeCurve(w, c)
		}
	})
	failed := 0
	for _, c := range curves {
		if c.Error != "" {
			failed++
		}
	}
	if err == nil && failed > 0 {
		err = fault.New(fault.Internal, "bench growth: %d of %d axes could not be measured to their end", failed, len(curves))
	}
	return err
}

// writeCurve writes an axis as a table, and what grows.
func writeCurve(w io.Writer, c growth.Curve) {
	fmt.Fprintf(w, "%s: %s; medians in ms\n", c.Axis, c.About)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	names := timeNames(c)
	fmt.Fprint(t, strings.ToUpper(c.Unit), "\t")
	for _, n := range names {
		fmt.Fprint(t, n, "\t")
	}
	fmt.Fprintln(t)
	for _, p := range c.Points {
		fmt.Fprint(t, p.X, "\t")
		for _, n := range names {
			cell := "-"
			if v, ok := p.MS[n]; ok {
				cell = strconv.FormatFloat(v, 'f', 2, 64)
			}
			fmt.Fprint(t, cell, "\t")
		}
		fmt.Fprintln(t)
	}
	_ = t.Flush()
	for _, g := range c.Growth {
		note := ""
		if c.Flat && g.Ratio > growth.Allowed {
			note = "  <- more than 1.5×"
		}
		stage := ""
		if g.Stage != "" && g.Ratio > 1.2 {
			stage = fmt.Sprintf("; most in %q, %.2f to %.2f", g.Stage, g.StageFrom, g.StageTo)
		}
		fmt.Fprintf(w, "  %-18s %.1f× (%.2f to %.2f%s)%s\n", g.Name, g.Ratio, g.From, g.To, stage, note)
	}
	if c.Error != "" {
		fmt.Fprintf(w, "  ends early: %s\n", printable(c.Error))
	}
}

// timeNames are the times of a curve in their order.
func timeNames(c growth.Curve) []string {
	var names []string
	for _, n := range []string{"checkpoint_frozen", "checkpoint", "rollback", "rollback_standby", "fork", "fork_all", "fork_each"} {
		for _, p := range c.Points {
			if _, ok := p.MS[n]; ok {
				names = append(names, n)
				break
			}
		}
	}
	return names
}

// drawGrowth draws each axis into a file of its own. No directory: none.
func drawGrowth(dir string, curves []growth.Curve) error {
	if dir == "" {
		return nil
	}
	for _, c := range curves {
		chart := plot.Chart{Title: c.About, XLabel: c.Unit, YLabel: "ms, median", LogX: true, LogY: !c.Flat}
		for _, n := range timeNames(c) {
			line := plot.Line{Name: n}
			for _, p := range c.Points {
				if v, ok := p.MS[n]; ok {
					line.Points = append(line.Points, plot.Point{X: float64(p.X), Y: v})
				}
			}
			chart.Lines = append(chart.Lines, line)
		}
		f, err := os.Create(filepath.Join(dir, c.Axis+".svg"))
		if err != nil {
			return fault.New(fault.Invalid, "bench growth: --svg: %w", err)
		}
		err = chart.Write(f)
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return err
		}
	}
	return nil
}
