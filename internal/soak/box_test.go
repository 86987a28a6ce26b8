package soak

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sandtree/sandtree/client"
)

//go:embed program.py
var program string

// mostCheckpoints of a sandbox are kept.
const mostCheckpoints = 12

// box is a sandbox with the program, and what the program said of itself at
// each checkpoint.
type box struct {
	k     *disasters
	c     *client.Client
	sb    *client.Sandbox
	voice *voice
	steps int
	last  string // what it said last
	kept  []kept // oldest first

	origin     kept              // what it was forked from
	suspension kept              // the last one
	former     []kept            // earlier suspensions, and checkpoints that were to be removed: they may be there
	at         string            // the checkpoint where it stands; empty: its origin
	parents    map[string]string // by checkpoint, removed ones too
	seen       int               // disasters
	unsure     bool              // where it stands
	leaving    bool              // it was to be removed
	removed    bool
	past       past
}

// past is what happened to a box last, for the message of a failure.
type past []string

func (p *past) note(format string, args ...any) {
	*p = append(*p, time.Now().Format("15:04:05.000 ")+fmt.Sprintf(format, args...))
	*p = (*p)[max(len(*p)-60, 0):]
}

func (p past) String() string { return strings.Join(p, "\n") }

var names atomic.Int64

func name(kind string) string { return fmt.Sprintf("soak-%s-%d", kind, names.Add(1)) }

// newBox makes a sandbox and starts the program.
func newBox(ctx context.Context, k *disasters, c *client.Client) (*box, error) {
	b := &box{k: k, c: c, seen: k.calm()}
	called := name("sb")
	err := through(ctx, func() (err error) {
		if b.sb, err = c.Sandbox(ctx, called); client.KindOf(err) == client.NotFound {
			b.sb, err = c.CreateSandbox(ctx, client.SandboxConfig{Template: "test", Name: called})
		}
		return ready(b.sb, err)
	})
	if err != nil {
		return nil, fmt.Errorf("create: %w", err)
	}
	var session *client.Session
	err = through(ctx, func() error {
		all, err := b.sb.Sessions(ctx)
		if err == nil && len(all) > 0 {
			session = all[0]
		} else if err == nil {
			session, err = b.sb.Start(ctx, client.Command{Argv: []string{"python3", "-c", program}})
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("start the program: %w", err)
	}
	if err := b.join(ctx, session.ID); err != nil {
		return nil, err
	}
	_, err = b.verify(ctx)
	return b, err
}

// ready takes a sandbox that is being made for one that is not there yet: the call
// that was cut off may still come to nothing.
func ready(sb *client.Sandbox, err error) error {
	if err == nil && !slices.Contains([]client.State{client.Running, client.Paused, client.Hibernated, client.LostState}, sb.State) {
		err = &client.Error{Kind: client.Unavailable, Message: "it is being made"}
	}
	return err
}

// join attaches to the program.
func (b *box) join(ctx context.Context, session string) error {
	return through(ctx, func() error {
		a, err := b.c.SessionHandle(session).Attach(ctx, client.AttachOptions{})
		if err == nil {
			b.voice = newVoice(b.c, a, b.k)
		}
		return err
	})
}

// verify asks the program whether all is whole.
func (b *box) verify(ctx context.Context) (string, error) {
	said, err := b.voice.ask(ctx, "verify")
	if err == nil && !strings.HasPrefix(said, "whole ") {
		err = fmt.Errorf("it says %q", said)
	}
	if err == nil {
		b.last = said
	}
	b.past.note("  says %q: %v", said, err)
	return said, err
}

// write changes memory and files.
func (b *box) write(ctx context.Context, r *rand.Rand) error {
	said, err := b.voice.ask(ctx, fmt.Sprintf("write %d %d", b.steps+1, r.Uint32()))
	if err != nil {
		return err
	}
	b.steps++
	if want := fmt.Sprintf("at %d", b.steps); said != want {
		return fmt.Errorf("a step of it says %q, want %q", said, want)
	}
	return nil
}

// checkpoint takes a checkpoint. A call that was cut off may have been done:
// the tree knows.
func (b *box) checkpoint(ctx context.Context, durable bool) error {
	said, err := b.verify(ctx)
	if err != nil {
		return err
	}
	called := name("cp")
	return through(ctx, func() error {
		id, err := b.named(ctx, called)
		kept := kept{said: said, how: fmt.Sprintf("taken %v", time.Now())}
		if err == nil && id == "" {
			var cp *client.Checkpoint
			if cp, err = b.sb.CheckpointWith(ctx, client.CheckpointOptions{Name: called, Durable: durable}); err == nil {
				id, kept.durable = cp.ID, cp.Durable == client.DurableYes
			}
		}
		if err == nil {
			b.past.note("  checkpoint %s", id)
			kept.id = id
			b.kept = append(b.kept, kept)
			b.moved(id)
			b.unsure = false
		}
		return err
	})
}

// wait waits until a checkpoint is durable.
func (b *box) wait(ctx context.Context, r *rand.Rand) error {
	k := &b.kept[r.IntN(len(b.kept))]
	err := through(ctx, func() error { _, err := b.c.WaitDurable(ctx, k.id); return err })
	if err == nil {
		k.durable = true
	}
	return err
}

// stand makes the sandbox stand still, and asks the program afterwards, which
// brings it back.
func (b *box) stand(ctx context.Context, hibernate bool) error {
	said, err := b.verify(ctx)
	if err != nil {
		return err
	}
	var sb *client.Sandbox
	err = through(ctx, func() (err error) {
		if hibernate {
			sb, err = b.sb.Hibernate(ctx)
		} else {
			sb, err = b.sb.Pause(ctx)
		}
		return err
	})
	if err != nil {
		return err
	}
	b.past.note("  suspension %s", sb.At)
	b.moved(sb.At)
	b.suspend(kept{id: sb.At, said: said, durable: true})
	after, err := b.verify(ctx)
	if err == nil && after != said {
		err = fmt.Errorf("after it stood still it says %q, and said %q", after, said)
	}
	return err
}

// named looks for a checkpoint's name in the tree.
func (b *box) named(ctx context.Context, called string) (id string, err error) {
	t, err := b.sb.Tree(ctx)
	for _, cp := range t.Checkpoints {
		if cp.Name == called {
			id = cp.ID
		}
	}
	return id, err
}

// rollback goes back to a checkpoint, where the program must say what it said
// there. Twice is as good as once.
func (b *box) rollback(ctx context.Context, r *rand.Rand) error {
	k := &b.kept[r.IntN(len(b.kept))]
	b.past.note("  rollback to %+v", *k)
	err := through(ctx, func() error {
		_, err := b.sb.Rollback(ctx, k.id)
		return err
	})
	if err != nil {
		return fmt.Errorf("to %+v: %w", *k, err)
	}
	b.at, b.unsure = k.id, false
	return b.compare(ctx, k)
}

// compare asks the program after a restore.
func (b *box) compare(ctx context.Context, k *kept) error {
	said, err := b.verify(ctx)
	if err != nil {
		return err
	}
	if k.said == "" {
		k.said = said
	}
	if said != k.said {
		return fmt.Errorf("restored from %s it says %q, and said %q there", k.id, said, k.said)
	}
	_, err = fmt.Sscanf(said, "whole %d", &b.steps)
	return err
}

// fork makes a sandbox of a checkpoint. A call that was cut off may have been
// done: the copy's name knows.
func (b *box) fork(ctx context.Context, r *rand.Rand) (*box, error) {
	k := b.kept[r.IntN(len(b.kept))]
	f := &box{k: b.k, c: b.c, seen: b.seen, origin: k}
	called := name("sb")
	err := through(ctx, func() (err error) {
		if f.sb, err = b.c.Sandbox(ctx, called); client.KindOf(err) == client.NotFound {
			var made client.ForkResult
			if made, err = b.c.Fork(ctx, k.id, 1, called); err == nil {
				f.sb = made.Sandboxes[0]
			}
		}
		return ready(f.sb, err)
	})
	if err != nil {
		return nil, err
	}
	if err := f.rejoin(ctx); err != nil {
		return nil, fmt.Errorf("copy %s: %w", f.sb.ID, err)
	}
	return f, f.compare(ctx, &k)
}

// forget removes a checkpoint.
func (b *box) forget(ctx context.Context, i int) error {
	id := b.kept[i].id
	b.past.note("  forget %s", id)
	b.former = append(b.former, kept{id: id, said: b.kept[i].said})
	b.kept = append(b.kept[:i], b.kept[i+1:]...)
	return gone(through(ctx, func() error { return b.sb.RemoveCheckpoint(ctx, id) }))
}

// run runs a command beside the program, whose output must come whole.
func (b *box) run(ctx context.Context, r *rand.Rand) error {
	n := 1 + r.IntN(200_000)
	var out bytes.Buffer
	end, err := b.sb.Run(ctx, client.Command{Argv: []string{"sh", "-c", fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x", n)}}, client.Stdio{Out: &out})
	if cutOff(err) {
		return nil // before it had begun
	}
	if err == nil && (end.ExitCode != 0 || out.Len() != n) {
		err = fmt.Errorf("a command ended with %d %s and wrote %d of %d bytes", end.ExitCode, end.Reason, out.Len(), n)
	}
	return err
}

// killClient kills a client in the middle of a checkpoint. What it asked for may
// be done all the same, now or a little later.
func (b *box) killClient(ctx context.Context, r *rand.Rand) error {
	called := name("cp")
	b.unsure = true
	cmd := b.k.d.Command("checkpoint", b.sb.ID, "--name", called)
	if err := cmd.Start(); err != nil {
		return err
	}
	time.Sleep(time.Duration(r.IntN(60)) * time.Millisecond)
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	return through(ctx, func() error {
		id, err := b.named(ctx, called)
		if err == nil && id != "" {
			b.kept = append(b.kept, kept{id: id, how: fmt.Sprintf("a killed client's %v", time.Now())})
			b.moved(id)
		}
		return err
	})
}

// remove removes the sandbox.
func (b *box) remove(ctx context.Context) error {
	if b.voice != nil {
		b.voice.close()
	}
	b.leaving = true
	err := gone(through(ctx, func() error { return b.sb.Remove(ctx, true) }))
	b.removed = err == nil
	return err
}

// gone takes a thing that is not there for removed: a call that was cut off may
// have done it.
func gone(err error) error {
	if client.KindOf(err) == client.NotFound {
		return nil
	}
	return err
}
