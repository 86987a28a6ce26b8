// Package cli is sandtree's command line: one file per command, each a thin
// layer over package client, plus the commands that are parts of the daemon.
//
// Commands take what they need from an [invocation]: streams, the chosen
// daemon, and whether output is for a reader or a program. They return errors;
// [Main] alone prints them and chooses the exit code.
package cli

import (
	"context"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/version"
)

// Groups of commands, as the help shows them.
const (
	groupSandbox    = "sandbox"
	groupCheckpoint = "checkpoint"
	groupSource     = "source"
	groupDaemon     = "daemon"
)

// invocation is one call of the command line.
type invocation struct {
	in       io.Reader
	out, err io.Writer

	json   bool
	state  string
	socket string

	diesOf unix.Signal // what ended the command, or 0
}

// Main runs the command line of this process and returns its exit code.
func Main() int {
	inv := &invocation{in: os.Stdin, out: os.Stdout, err: os.Stderr}
	ctx, stop := interruptible(context.Background())
	defer stop()
	code := inv.run(ctx, os.Args[1:])
	inv.dieInterrupted()
	return code
}

func (inv *invocation) run(ctx context.Context, args []string) int {
	root := inv.root()
	root.SetArgs(args)
	root.SetIn(inv.in)
	root.SetOut(inv.out)
	root.SetErr(inv.err)
	cmd, err := root.ExecuteContextC(ctx)
	if _, ok := cmd.Annotations[exitsAsProgram]; ok {
		err = asRuntimeFailure(err)
	}
	return inv.exit(inv.nameInterrupt(ctx, err))
}

func (inv *invocation) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "sandtree",
		Short: "Linux environments that can be checkpointed, rolled back and forked",
		Long: `sandtree gives programs and AI agents whole Linux environments that can be
checkpointed, rolled back and forked in milliseconds, files and processes together.

Exit codes: 0 success; 1 an internal error; 2 a request that cannot work; 3 not found;
4 the name is taken; 5 a state that forbids it now; 6 out of room or over a limit;
7 a missing kernel feature; 8 state that no checkpoint can keep; 9 the sandbox was lost;
10 no daemon; 11 canceled; 12 not permitted; 124 a time limit passed.
run, exec, shell and attach exit as the command inside did; with 125 when sandtree
itself failed, whatever the kind; with 126 when the command cannot be executed, with 127
when it does not exist, and with 124 when its time was up.`,
		Example: `  sandtree run -it --rm                        # a shell in a new sandbox
  sandtree create --name try && sandtree exec try -- make
  sandtree checkpoint try --name before && sandtree rollback try before
  sandtree fork try -n 8`,
		Version:           version.String(),
		SilenceErrors:     true,
		SilenceUsage:      true,
		Args:              cobra.ArbitraryArgs,
		RunE:              group,
		PersistentPreRunE: func(*cobra.Command, []string) error { return inv.settleState() },
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usageError(cmd, err) })
	f := root.PersistentFlags()
	f.BoolVar(&inv.json, "json", false, "print JSON: one object, or one array for lists")
	f.StringVar(&inv.state, "state", defaultState(), "state directory of the daemon (SANDTREE_STATE)")
	f.StringVar(&inv.socket, "socket", os.Getenv("SANDTREE_SOCKET"), "the daemon's API socket (SANDTREE_SOCKET; default: derived from the state directory)")
	root.AddGroup(
		&cobra.Group{ID: groupSandbox, Title: "Sandboxes and their commands:"},
		&cobra.Group{ID: groupCheckpoint, Title: "Checkpoints:"},
		&cobra.Group{ID: groupSource, Title: "Images and templates:"},
		&cobra.Group{ID: groupDaemon, Title: "The daemon and this machine:"},
	)
	inv.add(root, groupSandbox, inv.runCmd, inv.createCmd, inv.lsCmd, inv.showCmd, inv.rmCmd, inv.waitCmd,
		inv.pauseCmd, inv.resumeCmd, inv.hibernateCmd,
		inv.execCmd, inv.shellCmd, inv.sessionsCmd, inv.attachCmd, inv.killCmd, inv.cpCmd, inv.statsCmd)
	inv.add(root, groupCheckpoint, inv.checkpointCmd, inv.treeCmd, inv.rollbackCmd, inv.forkCmd, inv.diffCmd, inv.exportCmd, inv.importCmd)
	inv.add(root, groupSource, inv.imageCmd, inv.templateCmd)
	inv.add(root, groupDaemon, inv.doctorCmd, inv.serveCmd, inv.stopCmd, inv.infoCmd, inv.benchCmd, inv.completionCmd)
	inv.add(root, "", inv.nodeCmd, inv.supervisorCmd, inv.workerCmd, inv.benchTargetCmd, inv.benchWorkCmd)
	root.SetHelpCommandGroupID(groupDaemon)
	return root
}

// settleState makes the state directory one that means the same to the daemon, which
// runs elsewhere.
func (inv *invocation) settleState() (err error) {
	if inv.state == "" {
		inv.state = defaultState()
	}
	if inv.state, err = filepath.Abs(inv.state); err != nil {
		return fault.New(fault.Invalid, "state directory: %w", err)
	}
	return nil
}

func (inv *invocation) add(root *cobra.Command, group string, makers ...func() *cobra.Command) {
	for _, make := range makers {
		c := make()
		c.GroupID = group
		c.DisableFlagsInUseLine = true
		for _, sub := range c.Commands() {
			sub.DisableFlagsInUseLine = true
		}
		root.AddCommand(c)
	}
}

// group is the body of a command that only holds others.
func group(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	err := fault.New(fault.Invalid, "%sthere is no command %q", prefix(cmd), args[0])
	cmd.SuggestionsMinimumDistance = 2
	if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
		return err.WithHint("did you mean: %s %s", cmd.CommandPath(), s[0])
	}
	return err.WithHint("see: %s --help", cmd.CommandPath())
}

// onTerminal reports whether a stream is a terminal.
func onTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
