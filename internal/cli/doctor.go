package cli

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/feature"
)

// diagnosis is what doctor says of one kernel feature.
type diagnosis struct {
	ID       string `json:"id"` // the feature's name
	For      string `json:"for"`
	State    string `json:"state"` // "present", "missing" or "unknown"
	Required bool   `json:"required"`
	Kernel   string `json:"kernel,omitempty"` // the first release that has it
	Without  string `json:"without"`          // what is lost without it
	Help     string `json:"help,omitempty"`
	Reason   string `json:"reason,omitempty"` // what the probe met
}

func (inv *invocation) doctorCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Check what this machine's kernel can do",
		Long: `Check every kernel feature that sandtree uses: what it is for, whether it is there, what
is lost without it, and what would help; and a limit of the machine's. It needs no daemon; as root it can check all.
Exit code 7 if a feature is missing without which nothing runs.`,
		Example: "  sandtree doctor\n  sandtree doctor --json | jq -r '.[] | select(.state != \"present\").id'",
		Args:    exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var (
				all  []diagnosis
				lost []string
			)
			for _, r := range feature.Probe(cmd.Context()) {
				d := diagnose(r)
				all = append(all, d)
				if d.Required && d.State == "missing" {
					lost = append(lost, d.ID)
				}
			}
			if err := inv.show(all, func(w io.Writer) { drawDiagnosis(w, all) }); err != nil {
				return err
			}
			if len(lost) > 0 {
				return fault.New(fault.Unsupported, "sandtree does not run here: %d required features are missing", len(lost)).
					WithHint("what would help stands beside each")
			}
			return nil
		},
	}
}

func diagnose(r feature.Result) diagnosis {
	d := diagnosis{ID: r.Name, For: r.For, State: "present", Required: r.Required, Kernel: r.Kernel, Without: r.Without}
	if r.Err == nil {
		return d
	}
	d.Reason = r.Err.Error()
	d.State, d.Help = "unknown", fault.HintOf(r.Err)
	var missing *feature.MissingError
	if errors.As(r.Err, &missing) {
		d.State = "missing"
		if d.Help == "" {
			d.Help = r.Help
		}
	}
	return d
}

func drawDiagnosis(w io.Writer, all []diagnosis) {
	fmt.Fprintf(w, "kernel %s\n\n", feature.Release())
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "FEATURE\tSTATE\tFOR")
	for _, d := range all {
		state := d.State
		if d.State != "present" && d.Required {
			state += "!"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\n", d.ID, state, d.For)
	}
	_ = t.Flush()
	for _, d := range all {
		if d.State != "present" {
			fmt.Fprintf(w, "\n%s is %s\n", d.ID, d.State)
			facts(w, "  because", d.Reason, "  without it", d.Without, "  what helps", d.Help)
		}
	}
}
