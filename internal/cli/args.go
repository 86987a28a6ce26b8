package cli

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/fault"
)

// exactly, between and atLeast check the number of arguments and say what is
// wanted by the names in the command's use line.
func exactly(n int) cobra.PositionalArgs { return between(n, n) }

func atLeast(n int) cobra.PositionalArgs { return between(n, -1) }

func between(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) >= least && (most < 0 || len(args) <= most) {
			return nil
		}
		what := "missing arguments"
		if most >= 0 && len(args) > most {
			what = fmt.Sprintf("unexpected argument %q", args[most])
		}
		return usageError(cmd, fmt.Errorf("%s; usage: %s", what, cmd.UseLine()))
	}
}

// dashed splits the arguments of a command that is followed by a program's
// command line: the first n are its own. A "--" before the program is needed
// only if that has flags.
func dashed(cmd *cobra.Command, args []string, n int) (own, argv []string, err error) {
	if dash := cmd.ArgsLenAtDash(); dash > n {
		return nil, nil, usageError(cmd, fmt.Errorf("unexpected argument %q before --", args[n]))
	}
	if len(args) < n {
		return args, nil, nil
	}
	return args[:n], args[n:], nil
}

// environment makes a map of K=V settings. K alone takes this process's value.
func environment(settings []string) (map[string]string, error) {
	env := map[string]string{}
	for _, s := range settings {
		k, v, set := strings.Cut(s, "=")
		if k == "" {
			return nil, fault.New(fault.Invalid, "--env %q names no variable; write K=V", s)
		}
		if !set {
			if v, set = os.LookupEnv(k); !set {
				return nil, fault.New(fault.Invalid, "--env %s: the variable is not set here; write %s=VALUE", k, k)
			}
		}
		env[k] = v
	}
	return env, nil
}

// limitFlags are the flags that bound a sandbox.
type limitFlags struct {
	memory, disk byteSize
	cpus         float64
	pids         int64
}

func (l *limitFlags) register(cmd *cobra.Command) {
	f := cmd.Flags()
	f.Var(&l.memory, "memory", "most memory, e.g. 512M or 4G")
	f.Float64Var(&l.cpus, "cpus", 0, "most CPUs, e.g. 1.5")
	f.Int64Var(&l.pids, "pids", 0, "most processes and threads")
	f.Var(&l.disk, "disk", "most disk space, e.g. 10G")
}

func (l *limitFlags) resources() (client.Resources, error) {
	if !(l.cpus >= 0 && l.cpus <= 1<<16) {
		return client.Resources{}, fault.New(fault.Invalid, "--cpus %v is no number of CPUs", l.cpus)
	}
	if l.pids < 0 {
		return client.Resources{}, fault.New(fault.Invalid, "--pids %d is negative", l.pids)
	}
	return client.Resources{MemoryBytes: int64(l.memory), CPUs: l.cpus, PIDs: l.pids, DiskBytes: int64(l.disk)}, nil
}

var errNoCommand = errors.New("no command to run; write it after --")
