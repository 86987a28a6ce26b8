package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/programs/view"
)

// exitError is the end of a command that failed.
type exitError struct {
	command, said string
	code          int
}

func (e *exitError) Error() string {
	return fmt.Sprintf("%s ended with %d: %s", e.command, e.code, strings.TrimSpace(e.said))
}

func shell(ctx context.Context, sb *client.Sandbox, command string) (string, error) {
	return output(ctx, sb, "sh", "-c", command)
}

func output(ctx context.Context, sb *client.Sandbox, argv ...string) (string, error) {
	var out, complaints bytes.Buffer
	end, err := sb.Run(ctx, client.Command{Argv: argv, NoStdin: true}, client.Stdio{Out: &out, Err: &complaints})
	if err == nil && end.ExitCode != 0 {
		err = &exitError{strings.Join(argv, " "), out.String() + complaints.String(), end.ExitCode}
	}
	return out.String(), err
}

func take(ctx context.Context, sb *client.Sandbox) (view.View, error) {
	text, err := output(ctx, sb, inside, look)
	if err != nil {
		return nil, err
	}
	var v view.View
	return v, json.Unmarshal([]byte(text), &v)
}

// isSocket reports whether a path leads to a bound unix socket.
func isSocket(ctx context.Context, sb *client.Sandbox, path string) (bool, error) {
	_, err := output(ctx, sb, "test", "-S", path)
	var failed *exitError
	if errors.As(err, &failed) {
		return false, nil
	}
	return err == nil, err
}

// changed lists the files that differ between a checkpoint and a sandbox that
// stands at it.
func (t *trial) changed(ctx context.Context, sb *client.Sandbox, cp *client.Checkpoint) (map[string]bool, error) {
	out := map[string]bool{}
	all, err := t.c.Diff(ctx, cp.ID, sb.ID, "")
	for _, c := range all {
		out[c.Path] = true
	}
	return out, err
}
