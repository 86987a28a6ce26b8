package cli

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"text/tabwriter"

	"github.com/sandtree/sandtree/client"
)

// explained is what checkpoint --explain shows with --json.
type explained struct {
	*client.CheckpointInfo
	Items []client.CapturedItem `json:"items"`
}

// writeExplained lists what a checkpoint holds, and what its time went to.
func writeExplained(w io.Writer, cp *client.Checkpoint, items []client.CapturedItem) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "PROCESS\tCOMMAND\tKIND\tCOUNT\tBYTES\tWHAT")
	for _, i := range items {
		process, command := "-", "-"
		if i.Process > 0 {
			process, command = fmt.Sprint(i.Process), i.Command
		}
		bytes := "-"
		if i.Bytes > 0 {
			bytes = formatBytes(i.Bytes)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\n", process, quoted(command), i.Kind, i.Count, bytes, quoted(i.What))
	}
	_ = t.Flush()
	stages := make([]string, 0, len(cp.StageNS))
	for s := range cp.StageNS {
		stages = append(stages, s)
	}
	slices.SortFunc(stages, func(a, b string) int { return int(cp.StageNS[b] - cp.StageNS[a]) })
	fmt.Fprintln(t, "\nSTAGE\tTIME")
	for _, s := range stages {
		fmt.Fprintf(t, "%s\t%s\n", s, formatNS(cp.StageNS[s]))
	}
	_ = t.Flush()
	fmt.Fprintf(w, "\n%s  frozen %s, %s of memory\n", cp.ID, formatNS(cp.FrozenNS), formatBytes(cp.DirtyBytes))
}

// quoted is text from inside a sandbox, with what a terminal might obey escaped.
func quoted(s string) string {
	q := strconv.Quote(s)
	return q[1 : len(q)-1]
}
