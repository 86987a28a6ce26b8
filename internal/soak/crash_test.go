package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/failpoint"
	"github.com/sandtree/sandtree/internal/testdaemon"
)

// steps are those of making a checkpoint durable, in order.
var steps = []string{
	"engine.checkpoint.captured", "engine.checkpoint.zygotes", "engine.checkpoint.commit", "engine.keep.begun", "worker.write.begun",
	"durable.write.started", "durable.write.gathered", "durable.pack.begun", "durable.pack.synced", "durable.pack.published",
	"durable.packs.named", "durable.record.written", "durable.record.published", "durable.record.named", "worker.write.written",
	"engine.keep.written",
}

// stepTakes is how long each is made to take.
const stepTakes = 40 * time.Millisecond

// slowSteps makes each step take that long.
func slowSteps() string {
	var slow []string
	for _, s := range steps {
		slow = append(slow, fmt.Sprintf("%s=delay:%d", s, stepTakes.Milliseconds()))
	}
	return strings.Join(slow, ";")
}

// Whichever part of the daemon is killed at whichever step, what was reported
// durable comes back byte for byte, and nothing else is claimed.
func TestKillsAtEveryStepOfDurability(t *testing.T) {
	d := testdaemon.Start(t, failpoint.Env+"="+slowSteps())
	k := newDisasters(d)
	r := rand.New(rand.NewPCG(3, 4))
	ctx := t.Context()
	b, err := newBox(ctx, k, d.Dial())
	if err != nil {
		t.Fatal(err)
	}
	if err := b.checkpoint(ctx, true); err != nil {
		t.Fatal(err)
	}
	reported := 0
	for i := range len(steps) + 2 {
		if err := b.write(ctx, r); err != nil {
			t.Fatalf("kill %d: %v", i, err)
		}
		victim := []disaster{hostKilled, supervisorKilled, "node"}[i%3]
		durable, err := b.killDuring(ctx, victim, time.Duration(i)*stepTakes*3/2, r) // some steps come more than once
		if err != nil {
			t.Fatalf("kill %d, of %s: %v", i, victim, err)
		}
		if durable {
			reported++
		}
	}
	t.Logf("%d of %d checkpoints were reported durable before a kill", reported, len(steps)+2)
	v, err := b.sb.Verify(ctx)
	if err != nil || len(v.Problems) > 0 {
		t.Errorf("verify: %v %v", v.Problems, err)
	}
	if err := b.remove(ctx); err != nil {
		t.Error(err)
	}
}

// killDuring kills a part of the daemon some time after a durable checkpoint was
// asked for, and looks what has become of the sandbox. It returns whether the
// checkpoint was reported durable.
func (b *box) killDuring(ctx context.Context, victim disaster, after time.Duration, r *rand.Rand) (durable bool, err error) {
	said, err := b.verify(ctx)
	if err != nil {
		return false, err
	}
	called := name("cp")
	type reply struct {
		cp  *client.Checkpoint
		err error
	}
	replied := make(chan reply, 1)
	go func() {
		cp, err := b.sb.CheckpointWith(ctx, client.CheckpointOptions{Name: called, Durable: true})
		replied <- reply{cp, err}
	}()
	time.Sleep(after) // into the steps, which are slow
	if victim == "node" {
		err = b.k.killNode(r)
	} else {
		err = b.k.strike(victim, r)
	}
	if err != nil {
		return false, err
	}
	got := <-replied
	durable = got.err == nil
	// It may be there all the same. What the daemon had not been told of before it was killed it
	// learns from the disk when the sandbox wakes.
	var id string
	err = through(ctx, func() error {
		if _, err := b.sb.Run(ctx, client.Command{Argv: []string{"true"}}, client.Stdio{}); err != nil {
			return err
		}
		id, err = b.named(ctx, called)
		return err
	})
	if err != nil {
		return durable, err
	}
	if durable && id == "" {
		return durable, fmt.Errorf("checkpoint %s was reported durable, and is gone", got.cp.ID)
	}
	if id != "" {
		b.kept = append(b.kept, kept{id: id, said: said, durable: durable, how: called})
		b.moved(id)
	}
	if victim != "node" {
		return durable, b.catchUp(ctx)
	}
	now, err := b.verify(ctx)
	if err == nil && now != said {
		err = fmt.Errorf("it says %q, and said %q before", now, said)
	}
	return durable, err
}
