package cli

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandtree/sandtree/client"
)

func (inv *invocation) treeCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "tree [SANDBOX]",
		Short: "Show the checkpoint tree",
		Long: `Show a sandbox's checkpoints as a tree, or those of all sandboxes: name, age, how much
memory and disk each added, how long the processes stood still for it, whether it outlives
the daemon, and where the sandbox stands (*). Below it stands why a checkpoint could not be
made durable; that is tried again by itself where the reason may pass, as a full disk does.`,
		Example:           "  sandtree tree try",
		Args:              between(0, 1),
		ValidArgsFunction: inv.completeSandbox,
		RunE: inv.withDaemon(func(ctx context.Context, c *client.Client, args []string) error {
			if len(args) == 0 {
				all, err := c.Trees(ctx)
				if err != nil {
					return err
				}
				return inv.show(all, func(w io.Writer) {
					for _, t := range all {
						drawTree(w, t, time.Now())
					}
				})
			}
			t, err := c.SandboxHandle(args[0]).Tree(ctx)
			if err != nil {
				return err
			}
			return inv.show(t, func(w io.Writer) { drawTree(w, t, time.Now()) })
		}),
	}
}

// drawTree draws a sandbox's checkpoints. One whose parent was removed hangs
// from the sandbox itself.
func drawTree(w io.Writer, t client.Tree, now time.Time) {
	known := map[string]bool{}
	for _, k := range t.Checkpoints {
		known[k.ID] = true
	}
	children := map[string][]*client.CheckpointInfo{}
	for _, k := range t.Checkpoints {
		parent := k.Parent
		if !known[parent] {
			parent = ""
		}
		children[parent] = append(children[parent], k)
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	mark := ""
	if t.At == "" {
		mark = " *"
	}
	fmt.Fprintf(tw, "%s%s\tAGE\tMEMORY\tDISK\tFROZEN\tDURABLE\tID\n", printable(named(t.Name, t.ID)), mark)
	var draw func(parent, indent string)
	draw = func(parent, indent string) {
		for i, k := range children[parent] {
			branch, below := "├─ ", "│  "
			if i == len(children[parent])-1 {
				branch, below = "└─ ", "   "
			}
			mark := ""
			if k.ID == t.At {
				mark = " *"
			}
			fmt.Fprintf(tw, "%s%s%s%s\t%s\t%s\t%s\t%s\t%s\t%s\n", indent, branch, printable(named(k.Name, k.ID)), mark,
				formatAge(k.Created, now), formatBytes(k.DirtyBytes), formatBytes(k.FileBytes), formatNS(k.FrozenNS), durableText(k), k.ID)
			draw(k.ID, indent+below)
		}
	}
	draw("", "")
	_ = tw.Flush()
	for _, k := range t.Checkpoints {
		if k.Durable == client.DurableFailed {
			fmt.Fprintf(w, "%s is not durable: %s\n", printable(named(k.Name, k.ID)), printable(k.DurableReason))
		}
	}
}

// durableText says whether a checkpoint is durable, and if it is on disk alone.
func durableText(k *client.CheckpointInfo) string {
	if k.Durable == client.DurableYes && k.Memory == client.MemoryNone {
		return "on disk"
	}
	return string(k.Durable)
}

// checkpointID returns the id of a checkpoint that is named by name or id.
func checkpointID(t client.Tree, ref string) string {
	for _, k := range t.Checkpoints {
		if k.Name == ref {
			return k.ID
		}
	}
	return ref
}
