// Command try takes any command through a checkpoint, rollbacks and forks, and
// says what became different or what was refused. `make try CMD='…'` runs it.
//
// It compares what the kernel says of the processes, by a copy of itself that
// runs inside. What the program changes by itself, between two looks at it
// while it runs, is not compared.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/programs/view"
)

// The exit codes beside 0.
const (
	codeDiffers = 1
	codeFailed  = 2
	codeRefused = 8 // as of the commands of sandtree
)

// errDiffers ends a run in which something was not the same.
var errDiffers = errors.New("something differs")

// look is the argument with which the program, inside, shows a view.
const look = "look"

type options struct {
	socket, template, command, ready, check string
	rollbacks, forks                        int
	after                                   time.Duration
	keep                                    bool
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == look {
		v, err := view.Take()
		if err == nil {
			err = json.NewEncoder(os.Stdout).Encode(v)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(codeFailed)
		}
		return
	}
	var o options
	flag.StringVar(&o.socket, "socket", "/run/sandtree/default/api.sock", "the daemon's `socket`")
	flag.StringVar(&o.template, "template", "debian", "the `template` of the sandbox")
	flag.StringVar(&o.ready, "ready", "", "shell `command` that ends, inside, when the program is ready")
	flag.StringVar(&o.check, "check", "", "shell `command` that must succeed, inside, after each step")
	flag.DurationVar(&o.after, "after", time.Second, "how long the program runs before it is looked at")
	flag.IntVar(&o.rollbacks, "rollbacks", 3, "rollbacks")
	flag.IntVar(&o.forks, "forks", 2, "copies")
	flag.BoolVar(&o.keep, "keep", false, "leave the sandbox in the end, to look at it")
	flag.Parse()
	o.command = strings.Join(flag.Args(), " ")
	if o.command == "" {
		fmt.Fprintln(os.Stderr, "try: no command; as in: make try CMD='sleep 1000'")
		os.Exit(codeFailed)
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	err := run(ctx, o)
	switch {
	case err == nil:
		fmt.Println("all is the same")
	case errors.Is(err, errDiffers):
		os.Exit(codeDiffers)
	default:
		fmt.Fprintln(os.Stderr, "try:", err)
		if hint := client.HintOf(err); hint != "" {
			fmt.Fprintln(os.Stderr, " ", hint)
		}
		if client.KindOf(err) == client.Uncapturable {
			os.Exit(codeRefused)
		}
		os.Exit(codeFailed)
	}
}

func run(ctx context.Context, o options) (err error) {
	c, err := client.Dial(o.socket)
	if err != nil {
		return err
	}
	defer c.Close()
	sb, err := c.CreateSandbox(ctx, client.SandboxConfig{Template: o.template})
	if err != nil {
		return err
	}
	defer func() {
		if o.keep {
			fmt.Println("sandbox", sb.ID, "is left")
			return
		}
		err = errors.Join(err, sb.Remove(context.WithoutCancel(ctx), true))
	}()
	t, err := begin(ctx, c, sb, o)
	if err != nil {
		return err
	}
	return t.through(ctx)
}
