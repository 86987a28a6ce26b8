// Package subject starts the sandboxes that bench measures: a shell with a
// child, and a program with a heap, which changes part of it when told so and
// answers each word, so that it can be seen when it goes on.
package subject

import (
	"context"
	_ "embed"
	"errors"
	"strconv"
	"strings"

	"github.com/sandtree/sandtree/client"
)

//go:embed program.py
var program string

//go:embed clock.py
var clock string

// Config says what the program is and does. A zero count of processes or
// threads is one.
type Config struct {
	// Template must have bash and python3.
	Template string
	// HeapBytes is the program's heap; DirtyBytes of it and DirtyFiles files
	// of 4 KiB change at each word "dirty".
	HeapBytes, DirtyBytes int64
	DirtyFiles            int
	// Scattered spreads the dirty pages over the whole heap.
	Scattered bool
	// UpperFiles are made at the start and stay as they are.
	UpperFiles int
	// Processes are forked from the program, which itself counts; Threads
	// are the program's own.
	Processes, Threads int
}

func (c Config) argv() []string {
	pattern := "dense"
	if c.Scattered {
		pattern = "scattered"
	}
	n := func(v int64) string { return strconv.FormatInt(v, 10) }
	return []string{
		"python3", "-c", program, n(c.HeapBytes), n(c.DirtyBytes), strconv.Itoa(c.DirtyFiles), pattern,
		strconv.Itoa(c.UpperFiles), strconv.Itoa(max(c.Processes, 1)), strconv.Itoa(max(c.Threads, 1)),
	}
}

// Subject is a sandbox with the program in it.
type Subject struct {
	Sandbox *client.Sandbox
	*Voice  // of the program
}

// Start makes one, and returns when the program has answered once.
func Start(ctx context.Context, c *client.Client, cfg Config) (*Subject, error) {
	sb, err := c.CreateSandbox(ctx, client.SandboxConfig{Template: cfg.Template})
	if err != nil {
		return nil, err
	}
	s := &Subject{Sandbox: sb}
	if err := s.start(ctx, cfg); err != nil {
		s.Close(ctx)
		return nil, err
	}
	return s, nil
}

// shell reads lines beside a child that sleeps.
const shell = "sleep 1000000 & while read -r line; do echo $line; done"

func (s *Subject) start(ctx context.Context, cfg Config) error {
	if _, err := s.Sandbox.Start(ctx, client.Command{Argv: []string{"bash", "-c", shell}}); err != nil {
		return err
	}
	a, err := s.Sandbox.Exec(ctx, client.Command{Argv: cfg.argv()})
	if err != nil {
		return err
	}
	s.Voice = listen(a)
	return s.Tell("dirty")
}

// Close removes the sandbox.
func (s *Subject) Close(ctx context.Context) {
	if s.Voice != nil {
		s.Voice.Close()
	}
	_ = s.Sandbox.Remove(context.WithoutCancel(ctx), true)
}

// Join speaks to the copy of the program in a fork of its sandbox, of which these
// sessions go on.
func Join(ctx context.Context, sessions []*client.Session) (*Voice, error) {
	for _, s := range sessions {
		if !s.Ended && s.Argv[0] == "python3" {
			a, err := s.Attach(ctx, client.AttachOptions{})
			if err != nil {
				return nil, err
			}
			return listen(a), nil
		}
	}
	return nil, errors.New("no session of the program in a fork")
}

// Clock is a program that reads the clock in a loop.
type Clock struct{ voice *Voice }

// StartClock starts one beside the program.
func (s *Subject) StartClock(ctx context.Context) (*Clock, error) {
	a, err := s.Sandbox.Exec(ctx, client.Command{Argv: []string{"python3", "-c", clock}})
	if err != nil {
		return nil, err
	}
	c := &Clock{listen(a)}
	_, err = c.LongestNS()
	return c, err
}

// LongestNS is the longest time between two readings since it was asked
// last, in nanoseconds.
func (c *Clock) LongestNS() (int64, error) {
	answer, err := c.voice.Ask("longest")
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(answer), 10, 64)
}

// Close ends the attachment; the program ends with its sandbox.
func (c *Clock) Close() { c.voice.Close() }
