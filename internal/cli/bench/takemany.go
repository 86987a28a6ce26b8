package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/cli/bench/subject"
)

// copies is how many sandboxes fork_100 makes.
const copies = 100

func takeFork100(ctx context.Context, r *runner) ([]samples, error) {
	s, cp, err := r.subject(ctx)
	if err != nil {
		return nil, err
	}
	defer s.Close(ctx)
	var call, replied samples
	for range max(r.cfg.N/10, 2) {
		begin := time.Now()
		made, err := cp.Fork(ctx, copies)
		if err != nil {
			return nil, err
		}
		took := time.Since(begin)
		err = each(made.Sessions, func(sessions []*client.Session) error {
			v, err := subject.Join(ctx, sessions)
			if err != nil {
				return err
			}
			defer v.Close()
			return v.Tell("ping")
		})
		all := time.Since(begin)
		err = errors.Join(err, each(made.Sandboxes, func(sb *client.Sandbox) error {
			return sb.Remove(context.WithoutCancel(ctx), true)
		}))
		if err != nil {
			return nil, err
		}
		call.values, replied.values = append(call.values, took), append(replied.values, all)
	}
	return []samples{call, replied}, nil
}

// each does something with each, a few at a time.
func each[T any](all []T, do func(T) error) error {
	errs := make([]error, len(all))
	turns := make(chan struct{}, 8)
	var wg sync.WaitGroup
	for i, one := range all {
		turns <- struct{}{}
		wg.Go(func() { errs[i] = do(one); <-turns })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// idle is how many sandboxes memory_idle makes at a time: the machine's other
// work changes its memory too, so that one would not be seen.
const idle = 40

func takeMemoryIdle(ctx context.Context, r *runner) ([]samples, error) {
	var s samples
	for range max(r.cfg.N/10, 3) {
		of, err := memoryOf(idle, func() (func(), error) {
			sb, err := r.create(ctx)
			if err != nil {
				return nil, err
			}
			return func() { remove(ctx, sb) }, nil
		})
		if err != nil {
			return nil, err
		}
		s.values = append(s.values, time.Duration(of))
		if of, err = memoryOf(idle, sleeper); err != nil {
			return nil, err
		}
		s.floor = append(s.floor, time.Duration(of))
	}
	return []samples{s}, nil
}

// memoryOf is how many bytes of memory one of n things takes, kernel included,
// as the memory shows that the machine has left.
func memoryOf(n int, start func() (end func(), err error)) (bytes int64, err error) {
	before, err := availableMemory()
	if err != nil {
		return 0, err
	}
	for range n {
		end, err := start()
		if err != nil {
			return 0, err
		}
		defer end()
	}
	after, err := availableMemory()
	return (before - after) / int64(n), err
}

// availableMemory is MemAvailable of meminfo, see proc_meminfo(5), in bytes.
func availableMemory() (int64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		var kib int64
		if _, err := fmt.Sscanf(line, "MemAvailable: %d kB", &kib); err == nil {
			return kib << 10, nil
		}
	}
	return 0, errors.New("/proc/meminfo has no line MemAvailable")
}

// takeWorkload runs this program as [WorkCommand] inside and outside.
func takeWorkload(ctx context.Context, r *runner) ([]samples, error) {
	sb, err := r.create(ctx)
	if err != nil {
		return nil, err
	}
	defer remove(ctx, sb)
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	program, err := os.Open(self)
	if err != nil {
		return nil, err
	}
	defer program.Close()
	const inside = "/root/bench-work"
	if _, err := sb.WriteFile(ctx, client.WriteConfig{Path: inside, Mode: 0o755}, program); err != nil {
		return nil, err
	}
	dir := filepath.Join(r.cfg.Scratch, "work")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	var s samples
	for range max(r.cfg.N/10, 3) {
		var errs bytes.Buffer
		begin := time.Now()
		end, err := sb.Run(ctx, client.Command{Argv: []string{inside, WorkCommand, "/root/work"}}, client.Stdio{Err: &errs})
		if err == nil && end.ExitCode != 0 {
			err = fmt.Errorf("%s inside ended with %d %s: %s", WorkCommand, end.ExitCode, end.Reason, &errs)
		}
		if err != nil {
			return nil, err
		}
		s.values = append(s.values, time.Since(begin))
		begin = time.Now()
		if out, err := exec.CommandContext(ctx, self, WorkCommand, dir).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("%s outside: %w: %s", WorkCommand, err, out)
		}
		s.floor = append(s.floor, time.Since(begin))
	}
	return []samples{s}, nil
}
