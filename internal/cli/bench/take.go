package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/sandtree/sandtree/client"
)

var nothing = client.Command{Argv: []string{"true"}}

func takeCreate(ctx context.Context, r *runner) ([]time.Duration, error) {
	var took []time.Duration
	for range r.cfg.N {
		begin := time.Now()
		sb, err := r.c.CreateSandbox(ctx, client.SandboxConfig{Template: r.cfg.Template})
		if err != nil {
			return nil, err
		}
		_, err = sb.Run(ctx, nothing, client.Stdio{})
		took = append(took, time.Since(begin))
		if rmErr := sb.Remove(context.WithoutCancel(ctx), true); err == nil {
			err = rmErr
		}
		if err != nil {
			return nil, err
		}
	}
	return took, nil
}

func takeExec(ctx context.Context, r *runner) ([]time.Duration, error) {
	sb, err := r.c.CreateSandbox(ctx, client.SandboxConfig{Template: r.cfg.Template})
	if err != nil {
		return nil, err
	}
	defer func() { _ = sb.Remove(context.WithoutCancel(ctx), true) }()
	var took []time.Duration
	for range r.cfg.N {
		begin := time.Now()
		end, err := sb.Run(ctx, nothing, client.Stdio{})
		if err != nil {
			return nil, err
		}
		if end.ExitCode != 0 {
			return nil, fmt.Errorf("true ended with %d %s", end.ExitCode, end.Reason)
		}
		took = append(took, time.Since(begin))
	}
	return took, nil
}

func takeCheckpoint(ctx context.Context, r *runner) ([]time.Duration, error) {
	s, err := r.subject(ctx)
	if err != nil {
		return nil, err
	}
	defer s.close(ctx)
	var took []time.Duration
	// The first one copies the whole heap; the figure is of those that
	// follow.
	for i := range r.cfg.N + 1 {
		if err := s.voice.ask("dirty"); err != nil {
			return nil, err
		}
		cp, err := s.sandbox.Checkpoint(ctx, "")
		if err != nil {
			return nil, err
		}
		if i > 0 {
			took = append(took, time.Duration(cp.FrozenNS))
		}
	}
	return took, nil
}

func takeRollback(ctx context.Context, r *runner) ([]time.Duration, error) {
	return r.rollbacks(ctx, 0)
}

// workTime is how long a process works before it is rolled back, in the figure
// of rollbacks that find a standby.
const workTime = 200 * time.Millisecond

func takeRollbackStandby(ctx context.Context, r *runner) ([]time.Duration, error) {
	return r.rollbacks(ctx, workTime)
}

// rollbacks takes rollbacks to one checkpoint, with some time between them.
func (r *runner) rollbacks(ctx context.Context, work time.Duration) ([]time.Duration, error) {
	s, err := r.subject(ctx)
	if err != nil {
		return nil, err
	}
	defer s.close(ctx)
	cp, err := s.sandbox.Checkpoint(ctx, "")
	if err != nil {
		return nil, err
	}
	var took []time.Duration
	for range r.cfg.N {
		if err := s.voice.ask("dirty"); err != nil {
			return nil, err
		}
		select {
		case <-time.After(work):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		begin := time.Now()
		if _, err := s.sandbox.Rollback(ctx, cp.ID); err != nil {
			return nil, err
		}
		if err := s.voice.ask("ping"); err != nil {
			return nil, err
		}
		took = append(took, time.Since(begin))
	}
	return took, nil
}

func takeFork(ctx context.Context, r *runner) ([]time.Duration, error) {
	s, err := r.subject(ctx)
	if err != nil {
		return nil, err
	}
	defer s.close(ctx)
	cp, err := s.sandbox.Checkpoint(ctx, "")
	if err != nil {
		return nil, err
	}
	var took []time.Duration
	for range r.cfg.N {
		d, err := forkOnce(ctx, cp)
		if err != nil {
			return nil, err
		}
		took = append(took, d)
	}
	return took, nil
}

// forkOnce forks a checkpoint, asks the copy and removes it.
func forkOnce(ctx context.Context, cp *client.Checkpoint) (time.Duration, error) {
	begin := time.Now()
	made, err := cp.Fork(ctx, 1)
	if err != nil {
		return 0, err
	}
	sb := made.Sandboxes[0]
	defer func() { _ = sb.Remove(context.WithoutCancel(ctx), true) }()
	v, err := attachTo(ctx, sb, "python3")
	if err != nil {
		return 0, err
	}
	defer func() { _ = v.Close() }()
	err = v.ask("ping")
	return time.Since(begin), err
}

// neighbour starts a sandbox that keeps a CPU busy.
func (r *runner) neighbour(ctx context.Context) (stop func(), err error) {
	sb, err := r.c.CreateSandbox(ctx, client.SandboxConfig{Template: r.cfg.Template})
	if err != nil {
		return nil, err
	}
	stop = func() { _ = sb.Remove(context.WithoutCancel(ctx), true) }
	if _, err := sb.Start(ctx, client.Command{Argv: []string{"sh", "-c", "while :; do :; done"}, NoStdin: true}); err != nil {
		stop()
		return nil, err
	}
	return stop, nil
}
