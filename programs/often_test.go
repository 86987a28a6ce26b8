package programs_test

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/testdaemon"
)

var often = flag.Int("often", 300, "checkpoints of each program under load, at 50 a second")

const (
	perSecond = 50
	// perRound checkpoints are taken before as many seconds go by without, which
	// show what the load does by itself on the machine as it is at the time.
	perRound = 100
)

// paced are servers whose clients leave the processors time for something else. The transaction that stays
// open keeps every old version of a row, so that each costs more than the one before it.
var paced = []program{
	{name: "postgres, 50 transactions a second", argv: []string{"python3", "postgres.py", "50"}, load: true},
}

// Servers with clients at work are checkpointed 50 times a second. No client sees an error, and what
// the checkpoints cost their throughput is told.
func TestCheckpointsOften(t *testing.T) {
	if !*packages { // the root has no such servers
		return
	}
	c := testdaemon.Start(t).Dial()
	for _, p := range slices.Concat(packaged, paced) {
		if p.load {
			t.Run(p.name, func(t *testing.T) { stress(t, c, p) })
		}
	}
}

// rounds adds up what was seen with checkpoints and without.
type rounds struct {
	steps, floor    int
	took, floorTook time.Duration
	checkpoints     int
	frozen          []time.Duration
	answered        time.Duration            // all checkpoints, as who asks for them sees it
	removed         time.Duration            // and their removals
	stages          map[string]time.Duration // what checkpoints took until they were answered
}

func stress(t *testing.T, c *client.Client, p program) {
	ctx, cancel := context.WithTimeout(t.Context(), within+time.Duration(*often)*time.Second) // on a machine that can do one a second
	defer cancel()
	try, sb, d := launch(ctx, t, c, p)
	try("mark", d.mark("kept"))
	r := rounds{stages: map[string]time.Duration{}}
	for r.checkpoints < *often {
		try(fmt.Sprintf("after %d checkpoints", r.checkpoints), r.round(ctx, sb, d))
		try(fmt.Sprintf("after %d checkpoints", r.checkpoints), d.keeps("kept"))
	}
	t.Log(&r)
}

// round takes checkpoints for a while, and none for as long.
func (r *rounds) round(ctx context.Context, sb *client.Sandbox, d *driver) error {
	before, err := d.steps()
	if err != nil {
		return err
	}
	begin := time.Now()
	var last []string
	n := min(perRound, *often-r.checkpoints)
	for i := range n {
		time.Sleep(time.Until(begin.Add(time.Duration(i) * time.Second / perSecond)))
		asked := time.Now()
		k, err := sb.CheckpointWith(ctx, client.CheckpointOptions{Async: true, NotDurable: true})
		if err != nil {
			return fmt.Errorf("checkpoint %d: %w", r.checkpoints+1, err)
		}
		r.answered += time.Since(asked)
		r.checkpoints++
		r.frozen = append(r.frozen, time.Duration(k.FrozenNS))
		for stage, ns := range k.StageNS {
			r.stages[stage] += time.Duration(ns)
		}
		if last = append(last, k.ID); len(last) > 2 {
			asked := time.Now()
			if err := sb.RemoveCheckpoint(ctx, last[0]); err != nil {
				return err
			}
			r.removed += time.Since(asked)
			last = last[1:]
		}
	}
	r.took += time.Since(begin)
	middle, err := d.steps()
	if err != nil {
		return err
	}
	for _, id := range last {
		if err := sb.RemoveCheckpoint(ctx, id); err != nil {
			return err
		}
	}
	quiet := time.Now()
	from, err := d.steps()
	if err != nil {
		return err
	}
	time.Sleep(time.Duration(n) * time.Second / perSecond)
	to, err := d.steps()
	r.floorTook += time.Since(quiet)
	r.steps += middle - before
	r.floor += to - from
	return err
}

// String tells what was measured.
func (r *rounds) String() string {
	slices.Sort(r.frozen)
	rate := func(n int, d time.Duration) float64 { return float64(n) / d.Seconds() }
	with, without := rate(r.steps, r.took), rate(r.floor, r.floorTook)
	stages := ""
	for _, stage := range slices.SortedFunc(maps.Keys(r.stages), func(a, b string) int { return cmp.Compare(r.stages[b], r.stages[a]) }) {
		stages += fmt.Sprintf(" %s %.2f", stage, ms(r.stages[stage].Nanoseconds())/float64(r.checkpoints))
	}
	return fmt.Sprintf("%d checkpoints, %.1f a second; frozen %.2f ms, 99 of 100 below %.2f, at most %.2f; %.0f steps a second with them, %.0f without: a loss of %.0f %%; in ms: answered %.2f removed %.2f%s",
		r.checkpoints, rate(r.checkpoints, r.took), ms(r.frozen[len(r.frozen)/2].Nanoseconds()), ms(r.frozen[len(r.frozen)*99/100].Nanoseconds()),
		ms(r.frozen[len(r.frozen)-1].Nanoseconds()), with, without, 100*(1-with/without),
		ms(r.answered.Nanoseconds())/float64(r.checkpoints), ms(r.removed.Nanoseconds())/float64(r.checkpoints), stages)
}

// steps asks how much the load has done so far.
func (d *driver) steps() (int, error) {
	said, err := d.ask("steps")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(said)
}
