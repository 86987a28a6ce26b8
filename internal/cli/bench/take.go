package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/cli/bench/subject"
)

var nothing = client.Command{Argv: []string{"true"}}

// create makes an empty sandbox.
func (r *runner) create(ctx context.Context) (*client.Sandbox, error) {
	return r.c.CreateSandbox(ctx, client.SandboxConfig{Template: r.cfg.Subject.Template})
}

// remove removes a sandbox, also after the run was canceled.
func remove(ctx context.Context, sb *client.Sandbox) { _ = sb.Remove(context.WithoutCancel(ctx), true) }

func takeCreate(ctx context.Context, r *runner) ([]samples, error) {
	var s samples
	for range r.cfg.N {
		begin := time.Now()
		sb, err := r.create(ctx)
		if err != nil {
			return nil, err
		}
		_, err = sb.Run(ctx, nothing, client.Stdio{})
		s.values = append(s.values, time.Since(begin))
		if rmErr := sb.Remove(context.WithoutCancel(ctx), true); err == nil {
			err = rmErr
		}
		if err != nil {
			return nil, err
		}
	}
	return []samples{s}, nil
}

func takeExec(ctx context.Context, r *runner) ([]samples, error) {
	sb, err := r.create(ctx)
	if err != nil {
		return nil, err
	}
	defer remove(ctx, sb)
	var s samples
	for range r.cfg.N {
		begin := time.Now()
		end, err := sb.Run(ctx, nothing, client.Stdio{})
		if err != nil {
			return nil, err
		}
		if end.ExitCode != 0 {
			return nil, fmt.Errorf("true ended with %d %s", end.ExitCode, end.Reason)
		}
		s.values = append(s.values, time.Since(begin))
	}
	return []samples{s}, nil
}

// subject starts what is checkpointed, with a first checkpoint, which copies
// the whole heap.
func (r *runner) subject(ctx context.Context) (*subject.Subject, *client.Checkpoint, error) {
	s, err := subject.Start(ctx, r.c, r.cfg.Subject)
	if err != nil {
		return nil, nil, err
	}
	cp, err := s.Sandbox.Checkpoint(ctx, "")
	if err != nil {
		s.Close(ctx)
		return nil, nil, err
	}
	return s, cp, nil
}

func takeCheckpoint(ctx context.Context, r *runner) ([]samples, error) {
	s, _, err := r.subject(ctx)
	if err != nil {
		return nil, err
	}
	defer s.Close(ctx)
	var frozen, whole samples
	for range r.cfg.N {
		if err := s.Tell("dirty"); err != nil {
			return nil, err
		}
		begin := time.Now()
		cp, err := s.Sandbox.Checkpoint(ctx, "")
		if err != nil {
			return nil, err
		}
		whole.values = append(whole.values, time.Since(begin))
		frozen.values = append(frozen.values, time.Duration(cp.FrozenNS))
		frozen.stages = append(frozen.stages, cp.StageNS)
	}
	return []samples{frozen, whole}, nil
}

// takeSeen compares what a checkpoint reports with what a program inside sees
// of it, and with what it sees of the machine's other work over as long a
// time.
func takeSeen(ctx context.Context, r *runner) ([]samples, error) {
	s, _, err := r.subject(ctx)
	if err != nil {
		return nil, err
	}
	defer s.Close(ctx)
	clock, err := s.StartClock(ctx)
	if err != nil {
		return nil, err
	}
	defer clock.Close()
	var seen, without samples
	for range r.cfg.N {
		if err := s.Tell("dirty"); err != nil {
			return nil, err
		}
		if _, err := clock.LongestNS(); err != nil {
			return nil, err
		}
		begin := time.Now()
		cp, err := s.Sandbox.Checkpoint(ctx, "")
		if err != nil {
			return nil, err
		}
		took := time.Since(begin)
		longest, err := clock.LongestNS()
		if err != nil {
			return nil, err
		}
		seen.values = append(seen.values, time.Duration(longest))
		seen.floor = append(seen.floor, time.Duration(cp.FrozenNS))
		select {
		case <-time.After(took):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if longest, err = clock.LongestNS(); err != nil {
			return nil, err
		}
		without.values = append(without.values, time.Duration(longest))
	}
	without.floor = without.values
	return []samples{seen, without}, nil
}

func takeRollback(ctx context.Context, r *runner) ([]samples, error) {
	s, err := r.rollbacks(ctx, 0)
	if err != nil {
		return nil, err
	}
	return s[:1], nil
}

// workTime is how long a process works before it is rolled back, in the figure
// of rollbacks that find a standby.
const workTime = 200 * time.Millisecond

func takeRollbackStandby(ctx context.Context, r *runner) ([]samples, error) {
	return r.rollbacks(ctx, workTime)
}

// rollbacks takes rollbacks to one checkpoint, with some time between them:
// as the client waits for the first reply, and as the daemon says.
func (r *runner) rollbacks(ctx context.Context, work time.Duration) ([]samples, error) {
	s, cp, err := r.subject(ctx)
	if err != nil {
		return nil, err
	}
	defer s.Close(ctx)
	var whole, daemon samples
	for range r.cfg.N {
		if err := s.Tell("dirty"); err != nil {
			return nil, err
		}
		select {
		case <-time.After(work):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		begin := time.Now()
		done, err := s.Sandbox.Rollback(ctx, cp.ID)
		if err != nil {
			return nil, err
		}
		if err := s.Tell("ping"); err != nil {
			return nil, err
		}
		whole.values = append(whole.values, time.Since(begin))
		daemon.values = append(daemon.values, time.Duration(done.ElapsedNS))
		daemon.stages = append(daemon.stages, done.StageNS)
	}
	return []samples{whole, daemon}, nil
}

func takeFork(ctx context.Context, r *runner) ([]samples, error) { return r.forks(ctx, 0) }

func takeForkStandby(ctx context.Context, r *runner) ([]samples, error) {
	return r.forks(ctx, workTime)
}

// forks takes forks of one checkpoint, with some time between them.
func (r *runner) forks(ctx context.Context, work time.Duration) ([]samples, error) {
	s, cp, err := r.subject(ctx)
	if err != nil {
		return nil, err
	}
	defer s.Close(ctx)
	var took samples
	for range r.cfg.N {
		select {
		case <-time.After(work):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		d, err := forkOnce(ctx, cp)
		if err != nil {
			return nil, err
		}
		took.values = append(took.values, d)
	}
	return []samples{took}, nil
}

// forkOnce forks a checkpoint, asks the copy and removes it.
func forkOnce(ctx context.Context, cp *client.Checkpoint) (time.Duration, error) {
	begin := time.Now()
	made, err := cp.Fork(ctx, 1)
	if err != nil {
		return 0, err
	}
	sb := made.Sandboxes[0]
	defer remove(ctx, sb)
	v, err := subject.Join(ctx, made.Sessions[0])
	if err != nil {
		return 0, err
	}
	defer v.Close()
	err = v.Tell("ping")
	return time.Since(begin), err
}
