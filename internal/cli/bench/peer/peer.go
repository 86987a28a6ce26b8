// Package peer measures other programs that start, checkpoint and restore,
// where they are installed: what they take for the same thing on the same
// machine, in the same run.
package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Config says how often and with what peers are measured.
type Config struct {
	N         int
	HeapBytes int64 // of the process that is dumped
	// Scratch is a directory for what they need, on a disk.
	Scratch string
	// Cache is where scripts/bench-peers puts what is not installed on the
	// machine; see [CacheDirectory].
	Cache string
}

// CacheDirectory is where scripts/bench-peers unpacks CRIU and a root for
// runc.
func CacheDirectory() string {
	cache := os.Getenv("XDG_CACHE_HOME")
	if cache == "" {
		cache = "/var/cache"
	}
	return filepath.Join(cache, "sandtree", "peers")
}

// Figure is what a peer takes for one thing.
type Figure struct {
	Name, About string
	Took        []time.Duration
}

// Peer is a program of the same kind.
type Peer struct {
	Name string
	// find prepares the peer; the error of one that is not there is
	// [ErrAbsent].
	find func(ctx context.Context, cfg Config) (measure, error)
}

// measure takes a peer's figures.
type measure func(ctx context.Context) ([]Figure, error)

// ErrAbsent says that a peer is not installed.
var ErrAbsent = errors.New("not installed")

// All peers that are known.
var All = []Peer{{"criu", findCRIU}, {"runc", findRunc}, {"docker", findDocker}}

// Measure takes the peer's figures. The error is [ErrAbsent] if it is not
// installed.
func (p Peer) Measure(ctx context.Context, cfg Config) ([]Figure, error) {
	m, err := p.find(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.Name, err)
	}
	fs, err := m(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.Name, err)
	}
	return fs, nil
}

// run runs a command; its output is in the error.
func run(ctx context.Context, argv ...string) error {
	_, err := output(ctx, argv...)
	return err
}

func output(ctx context.Context, argv ...string) (string, error) {
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, strings.TrimSpace(errs.String()+out.String()))
	}
	return strings.TrimSpace(out.String()), nil
}

// times repeats something n times.
func times(n int, do func() (time.Duration, error)) ([]time.Duration, error) {
	var all []time.Duration
	for range n {
		d, err := do()
		if err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	return all, nil
}

// timed is a command as something to repeat.
func timed(ctx context.Context, argv ...string) func() (time.Duration, error) {
	return func() (time.Duration, error) {
		begin := time.Now()
		err := run(ctx, argv...)
		return time.Since(begin), err
	}
}
