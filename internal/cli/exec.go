package cli

import (
	"bytes"
	"context"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/fault"
)

// execFlags are the flags of commands that start a program in a sandbox.
type execFlags struct {
	interactive, tty bool
	user, dir        string
	env              []string
	timeout          time.Duration
	detach           bool
}

func (e *execFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVarP(&e.interactive, "interactive", "i", false, "pass this input on")
	f.BoolVarP(&e.tty, "tty", "t", false, "give the program a terminal")
	f.StringVarP(&e.user, "user", "u", "", "user inside: a name, or uid[:gid] (default: the template's)")
	f.StringVarP(&e.dir, "workdir", "w", "", "directory to start in (default: the template's)")
	f.StringArrayVarP(&e.env, "env", "e", nil, "set a variable, K=V; may be repeated")
	f.DurationVar(&e.timeout, "timeout", 0, "kill the program after this time, e.g. 30s; the exit code is 124")
	f.BoolVarP(&e.detach, "detach", "d", false, "leave it running and print its session's id")
}

func (inv *invocation) execCmd() *cobra.Command {
	var flags execFlags
	cmd := &cobra.Command{
		Use:   "exec [flags] SANDBOX -- COMMAND [ARG…]",
		Short: "Run a program in a sandbox",
		Long: `Run a program in a sandbox and exit as it did.

Signals are passed on. With -it the program has a terminal of its own: ctrl-p ctrl-q
leaves it running, and "sandtree attach" comes back. The program survives when this
command is killed. With --json its output is kept and printed as one object.
Exit codes: the program's own; 124 the timeout passed; 125 sandtree failed; 126 the
program cannot be executed; 127 it does not exist.`,
		Example: `  sandtree exec try -- make -j2
  echo 'print(6*7)' | sandtree exec -i try -- python3 -
  sandtree exec --detach try -- ./server`,
		Args:              atLeast(1),
		Annotations:       map[string]string{exitsAsProgram: ""},
		ValidArgsFunction: inv.completeSandbox,
		RunE: func(cmd *cobra.Command, args []string) error {
			own, argv, err := dashed(cmd, args, 1)
			if err != nil {
				return err
			}
			if len(argv) == 0 {
				return usageError(cmd, errNoCommand)
			}
			c, err := inv.connect(cmd.Context())
			if err != nil {
				return err
			}
			defer func() { _ = c.Close() }()
			return inv.execIn(cmd.Context(), c.SandboxHandle(own[0]), argv, flags)
		},
	}
	flags.register(cmd)
	return cmd
}

// command makes what the flags and arguments ask to run.
func (inv *invocation) command(argv []string, e execFlags) (client.Command, error) {
	env, err := environment(e.env)
	if err != nil {
		return client.Command{}, err
	}
	if e.timeout < 0 {
		return client.Command{}, fault.New(fault.Invalid, "--timeout %v is negative", e.timeout)
	}
	c := client.Command{Argv: argv, Env: env, Dir: e.dir, User: e.user, TTY: e.tty, NoStdin: !e.interactive && !e.tty, Timeout: e.timeout}
	if e.tty {
		c.Window = inv.size()
		if _, set := env["TERM"]; !set {
			env["TERM"] = terminalType()
		}
	}
	return c, nil
}

// execIn runs a program in a sandbox as the flags say.
func (inv *invocation) execIn(ctx context.Context, sb *client.Sandbox, argv []string, e execFlags) error {
	s := streams{interactive: e.interactive, tty: e.tty, out: inv.out, err: inv.err}
	if err := inv.checkTerminal(s); err != nil {
		return err
	}
	c, err := inv.command(argv, e)
	if err != nil {
		return err
	}
	if e.detach {
		session, err := sb.Start(ctx, c)
		if err != nil {
			return startFailure(err)
		}
		return inv.show(session, func(w io.Writer) { _, _ = io.WriteString(w, session.ID+"\n") })
	}
	a, err := attached(ctx, func(ctx context.Context) (*client.Attachment, error) { return sb.Exec(ctx, c) })
	if err != nil {
		return startFailure(err)
	}
	if !inv.json {
		end, err := inv.follow(ctx, a, s)
		if err != nil {
			return err
		}
		return inv.finish(end)
	}
	return inv.execJSON(ctx, a, s)
}

// keptOutput is the most output of one stream that --json keeps.
const keptOutput = 16 << 20

// execJSON runs the program to its end and prints the session and its output
// as one object.
func (inv *invocation) execJSON(ctx context.Context, a *client.Attachment, s streams) error {
	var out, errs keeper
	s.out, s.err = &out, &errs
	end, err := inv.follow(ctx, a, s)
	if err != nil {
		return err
	}
	v := struct {
		client.SessionInfo
		Stdout    string `json:"stdout"`
		Stderr    string `json:"stderr"`
		Truncated bool   `json:"truncated,omitempty"` // more than 16 MiB of a stream
	}{end, out.String(), errs.String(), out.cut || errs.cut}
	if err := printJSON(inv.out, v); err != nil {
		return err
	}
	return inv.finish(end)
}

// keeper keeps the first keptOutput bytes that are written to it.
type keeper struct {
	bytes.Buffer
	cut bool
}

func (k *keeper) Write(p []byte) (int, error) {
	room := keptOutput - k.Len()
	if len(p) > room {
		k.cut = true
		_, _ = k.Buffer.Write(p[:room])
		return len(p), nil
	}
	return k.Buffer.Write(p)
}

// startFailure gives errors of starting a program the exit codes that shells
// have for them. The daemon's text has, behind the sandbox, what is wrong: the
// command, or the directory to start in.
func startFailure(err error) error {
	_, about, _ := strings.Cut(err.Error(), "exec in sandbox ")
	_, about, _ = strings.Cut(about, ": ")
	kind := kindOf(err)
	switch command := strings.HasPrefix(about, "command "); {
	case strings.HasPrefix(about, "working directory "), command && kind == fault.Invalid:
		return &runtimeFailure{err: err, code: exitNotExecutable}
	case command && kind == fault.NotFound:
		return &runtimeFailure{err: err, code: exitNotFound}
	}
	return err
}
