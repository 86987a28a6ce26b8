package soak

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/failpoint"
	"github.com/sandtree/sandtree/internal/testdaemon"
)

var anytime = flag.Int("anytime", 16, "kills at any time")

// workerKilled loses nothing: what was being written is written once more.
const workerKilled disaster = "worker killed"

// Supervisor and worker are killed at any time, while checkpoints, pauses and
// hibernations are being made durable, which is made slow: a sandbox is what it was,
// or what it was at a checkpoint that was reported durable, and never less than what
// was reported.
func TestKillsAtAnyTime(t *testing.T) {
	d := testdaemon.Start(t, failpoint.Env+"="+slowSteps())
	k := newDisasters(d)
	r := rand.New(rand.NewPCG(9, 10))
	ctx := t.Context()
	b, err := newBox(ctx, k, d.Dial())
	if err != nil {
		t.Fatal(err)
	}
	if err := b.checkpoint(ctx, true); err != nil {
		t.Fatal(err)
	}
	takes := stepTakes * time.Duration(len(steps)) * 3 / 2 // some steps come more than once
	reported := map[string]int{}
	for i := range *anytime {
		if err := b.write(ctx, r); err != nil {
			t.Fatalf("kill %d: %v", i, err)
		}
		what := []string{"checkpoint", "pause", "hibernate"}[r.IntN(3)]
		victim := []disaster{supervisorKilled, supervisorKilled, workerKilled}[r.IntN(3)]
		after := time.Duration(r.Int64N(int64(takes)))
		ok, err := b.killWhile(ctx, what, victim, after, r)
		if err != nil {
			t.Fatalf("kill %d, of %s %v into %s: %v", i, victim, after, what, err)
		}
		if ok {
			reported[what]++
		}
	}
	t.Logf("reported before a kill, or after it all the same: %v of %d", reported, *anytime)
	v, err := b.sb.Verify(ctx)
	if err != nil || len(v.Problems) > 0 {
		t.Errorf("verify: %v %v", v.Problems, err)
	}
	if err := b.remove(ctx); err != nil {
		t.Error(err)
	}
}

// killWhile kills a part of the daemon some time after something was asked for that
// becomes durable, and looks what has become of the sandbox. It returns whether what
// was asked for was reported done.
func (b *box) killWhile(ctx context.Context, what string, victim disaster, after time.Duration, r *rand.Rand) (reported bool, err error) {
	said, err := b.verify(ctx)
	if err != nil {
		return false, err
	}
	before := b.mayHaveSaid()
	called := name("cp")
	replied := make(chan error, 1)
	go func() {
		var err error
		switch what {
		case "checkpoint":
			_, err = b.sb.CheckpointWith(ctx, client.CheckpointOptions{Name: called, Durable: true})
		case "pause":
			_, err = b.sb.Pause(ctx)
		case "hibernate":
			_, err = b.sb.Hibernate(ctx)
		}
		replied <- err
	}()
	time.Sleep(after) // into the steps, which are slow
	if victim == workerKilled {
		err = b.k.kill("worker")
	} else {
		err = b.k.strike(victim, r)
	}
	if err != nil {
		return false, err
	}
	reported = <-replied == nil
	b.unsure = true // whether it was done
	if err := b.catchUp(ctx); err != nil {
		return reported, err
	}
	b.unsure = false
	now, err := b.verify(ctx)
	if err != nil {
		return reported, err
	}
	if now != said && (reported || victim == workerKilled || !slices.Contains(before, now)) {
		return reported, fmt.Errorf("it says %q, and said %q before, and %q where it may come back", now, said, before)
	}
	_, _ = fmt.Sscanf(now, "whole %d", &b.steps)
	tree, err := b.sb.Tree(ctx)
	if err != nil {
		return reported, err
	}
	there := false
	for _, c := range tree.Checkpoints {
		if c.Name == called {
			there = true
			b.kept = append(b.kept, kept{id: c.ID, said: said, durable: reported, how: called})
		}
	}
	if what == "checkpoint" && reported && !there {
		return reported, fmt.Errorf("checkpoint %s was reported durable, and is gone", called)
	}
	b.moved(tree.At)
	at := b.find(tree.At)
	if at == nil { // a suspension that nobody was told of
		b.suspension = kept{id: tree.At}
		at = &b.suspension
	}
	at.said, at.durable = now, at.durable || reported
	return reported, nil
}

// mayHaveSaid is what the program said at each checkpoint where it may come back.
func (b *box) mayHaveSaid() (all []string) {
	for _, id := range b.mayComeBackAt() {
		if k := b.find(id); k != nil {
			all = append(all, k.said)
		}
	}
	return all
}
