package engine_test

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandtree/sandtree/internal/supervisor/control"
)

var (
	fuzzedCount  = flag.Int("fuzzed", 10, "programs of random state that are taken through checkpoints")
	fuzzedSeed   = flag.Uint64("fuzzedseed", 1, "seed of the first one; the others have the next ones")
	fuzzedWithin = flag.Duration("fuzzedwithin", 0, "after this time no further programs are begun; 0: as many as there shall be")
	fuzzedRandom = flag.Bool("fuzzedrandom", false, "begin with a random seed")
)

// fuzzedTogether is how many programs of random state one sandbox has.
const fuzzedTogether = 25

// Programs that brought themselves into a random state (testdata/fuzzed) tell of
// themselves what they can find out: the same before and after a checkpoint, in a
// copy, after a rollback, after one to a checkpoint of what was rolled back, and
// after one to what was read from disk. In the end each also takes out what it
// holds: what waits in pipes, sockets, signals. All of that must be what a program
// tells that was never restored.
func TestFuzzedPrograms(t *testing.T) {
	binary := buildFuzzed(t)
	base := *fuzzedSeed
	if *fuzzedRandom {
		base = rand.Uint64() >> 32 << 16
	}
	var seeds []uint64
	for i := range *fuzzedCount {
		seeds = append(seeds, base+uint64(i))
	}
	k := newKeepingWith(t, withoutStandbys) // they would cost more than all else
	failed := &fuzzedFailures{of: map[uint64]bool{}}
	begin := time.Now()
	for len(seeds) > 0 {
		if took := time.Since(begin); *fuzzedWithin > 0 && took > *fuzzedWithin {
			t.Logf("the last %d of %d programs, from seed %d on, were left out after %v", len(seeds), *fuzzedCount, seeds[0], took.Round(time.Second))
			break
		}
		n := min(len(seeds), fuzzedTogether)
		(&fuzzed{keeping: k, t: t, binary: binary, failed: failed}).playAll(seeds[:n])
		seeds = seeds[n:]
		if len(failed.of) > 10 {
			t.Error("there are more, perhaps")
			break
		}
	}
	failed.tell(t)
}

// fuzzedFailures are what failed, to be told once more in the end: there a log that
// was cut has it.
type fuzzedFailures struct {
	of    map[uint64]bool // seeds that failed alone
	texts []string
}

func (f *fuzzedFailures) add(t *testing.T, seeds []uint64, why string) {
	t.Helper()
	if len(seeds) == 1 {
		f.of[seeds[0]] = true
	}
	text := fmt.Sprintf("seeds %d: %s", seeds, why)
	f.texts = append(f.texts, text)
	t.Error(text)
}

func (f *fuzzedFailures) tell(t *testing.T) {
	t.Helper()
	for _, text := range f.texts {
		t.Logf("failed: %.1500s", text)
	}
	for seed := range f.of {
		t.Logf("again: go test ./internal/engine -run TestFuzzedPrograms -args -fuzzed 1 -fuzzedseed %d", seed)
	}
}

// buildFuzzed compiles the program.
func buildFuzzed(t *testing.T) []byte {
	t.Helper()
	sources, err := filepath.Glob("testdata/fuzzed/*.c")
	check(t, err)
	out := filepath.Join(t.TempDir(), "fuzzed")
	args := append([]string{"-O1", "-static", "-pthread", "-Wall", "-Wextra", "-Werror", "-Wno-format-truncation", "-o", out}, sources...)
	if said, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, said)
	}
	content, err := os.ReadFile(out)
	check(t, err)
	return content
}

// fuzzed is one sandbox with its programs.
type fuzzed struct {
	*keeping
	t      *testing.T
	binary []byte
	failed *fuzzedFailures

	seeds    []uint64
	sessions []string // by program
	took     []string // what took how long
	since    time.Time
}

// lap notes how long a part took.
func (f *fuzzed) lap(what string) {
	if !f.since.IsZero() {
		f.took = append(f.took, fmt.Sprintf("%s %d ms", what, time.Since(f.since).Milliseconds()))
	}
	f.since = time.Now()
}

// telling is what programs say, by program.
type telling []string

// playAll plays programs in one sandbox. If they cannot be checkpointed or restored
// they are played in halves, until it is known which of them.
func (f *fuzzed) playAll(seeds []uint64) {
	f.t.Helper()
	begin := time.Now()
	f.sessions, f.took, f.since = nil, nil, begin
	err := f.play(seeds)
	f.t.Logf("%d programs from seed %d on took %.1f s: %v", len(seeds), seeds[0], time.Since(begin).Seconds(), f.took)
	if err == nil {
		return
	}
	f.failed.add(f.t, seeds, err.Error())
	if len(seeds) == 1 {
		return
	}
	f.playAll(seeds[:len(seeds)/2])
	f.playAll(seeds[len(seeds)/2:])
}

func (f *fuzzed) play(seeds []uint64) error {
	defer f.lap("all again")
	box := f.create()
	defer f.remove(box)
	f.put(box, "/usr/bin/fuzzed", f.binary)
	f.lap("create")
	live := make([]*talk, len(seeds))
	for i, seed := range seeds {
		live[i] = f.exec(box, false, "/usr/bin/fuzzed", fmt.Sprint(seed))
	}
	for i, x := range live {
		if _, err := x.reply("= ready\n"); err != nil {
			f.failed.add(f.t, seeds[i:i+1], fmt.Sprintf("it does not start: %v", err))
			return nil
		}
		f.sessions = append(f.sessions, x.id)
	}
	f.lap("start")
	f.seeds = seeds
	was := f.ask("before all", live, "t")
	f.same("again, before all", was, f.ask("again, before all", live, "t"), live)

	f.lap("tell twice")
	first, err := f.engine.Checkpoint(background, control.CheckpointRequest{Sandbox: box, Checkpoint: f.id("cp"), Keep: true})
	if err != nil {
		return err
	}
	f.lap("checkpoint")
	f.same("in the live program", was, f.ask("in the live program", live, "t"), live)
	copied := f.id("sb")
	_, err = forked(f.engine.Fork(background, control.ForkRequest{
		From: control.CheckpointRef{Sandbox: box, Checkpoint: first.ID}, Sandboxes: []string{copied}, Hostnames: []string{""},
	}))
	if err != nil {
		return err
	}
	defer f.remove(copied)
	f.lap("fork")
	in := make([]*talk, len(live))
	for i, s := range f.sessions {
		in[i] = f.adopt(copied, s)
	}
	f.same("in a copy", was, f.ask("in a copy", in, "t"), live)
	all := f.ask("all, in the live program", live, "d")
	f.same("all, in a copy", all, f.ask("all, in a copy", in, "d"), live)

	f.lap("tell five times")
	in = f.back(box, first.ID)
	f.same("after a rollback", was, f.ask("after a rollback", in, "t"), in)
	f.lap("rollback")
	second := f.checkpoint(box)
	in = f.back(box, second.ID)
	f.same("after the second rollback", was, f.ask("after the second rollback", in, "t"), in)
	f.same("all, after the second rollback", all, f.ask("all, after the second rollback", in, "d"), in)

	f.lap("second")
	f.kept(box, first.ID)
	if n := f.engine.Unload(box); n != 1 {
		f.t.Fatalf("%d checkpoints are on disk alone", n)
	}
	in = f.back(box, first.ID)
	f.lap("from disk")
	f.same("after a rollback from disk", was, f.ask("after a rollback from disk", in, "t"), in)
	f.same("all, after a rollback from disk", all, f.ask("all, after a rollback from disk", in, "d"), in)
	return nil
}

// remove removes a sandbox.
func (f *fuzzed) remove(box string) {
	f.t.Helper()
	if err := f.engine.Remove(background, control.SandboxRequest{Sandbox: box}); err != nil {
		f.failed.add(f.t, f.seeds, fmt.Sprintf("remove %s: %v", box, err))
	}
}

// back rolls back and finds the programs.
func (f *fuzzed) back(box, checkpoint string) []*talk {
	_, ss := f.rollback(box, checkpoint)
	out := make([]*talk, len(f.sessions))
	for i, s := range f.sessions {
		out[i] = ss[s]
	}
	return out
}

// ask has all programs tell.
func (f *fuzzed) ask(when string, of []*talk, what string) telling {
	f.t.Helper()
	out := make(telling, len(of))
	for _, x := range of { // all at once: each tells on its own
		x.say(what)
	}
	for i, x := range of {
		var err error
		if out[i], err = x.reply(".\n"); err != nil {
			f.failed.add(f.t, f.seeds[i:i+1], fmt.Sprintf("%s: %v", when, err))
		}
	}
	return out
}

// replyTime is how long a program may take to tell. Some have SCHED_IDLE or nice 19,
// and get next to no processor while others want it: 8 s beside four that do.
const replyTime = 3 * time.Minute

// reply reads until a line.
func (x *talk) reply(end string) (string, error) {
	if err := x.out.SetReadDeadline(time.Now().Add(replyTime)); err != nil {
		return "", err
	}
	var b strings.Builder
	for {
		line, err := x.lines.ReadString('\n')
		if line == end {
			return b.String(), nil
		}
		b.WriteString(line)
		if strings.HasPrefix(line, "! ") || errors.Is(err, io.EOF) {
			return b.String(), fmt.Errorf("it ended: %s", strings.TrimSpace(line))
		}
		if err != nil {
			return b.String(), err
		}
	}
}

// same compares what the programs tell, and shows of each that differs what
// differs and how it was made.
func (f *fuzzed) same(when string, was, is telling, live []*talk) {
	f.t.Helper()
	for i, seed := range f.seeds {
		if was[i] == is[i] || f.failed.of[seed] {
			continue
		}
		f.failed.add(f.t, f.seeds[i:i+1], when+":\n"+differences(was[i], is[i]))
		live[i].say("s")
		if steps, err := live[i].reply(".\n"); err == nil {
			f.t.Logf("how seed %d was made:\n%s", seed, steps)
		}
	}
}

// differences shows the lines that two texts differ in, with the process that
// they are of.
func differences(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	var out strings.Builder
	process := ""
	for i := 0; i < max(len(x), len(y)) && out.Len() < 4000; i++ {
		var l, r string
		if i < len(x) {
			l = x[i]
		}
		if i < len(y) {
			r = y[i]
		}
		if strings.HasPrefix(l, "process ") {
			process = l
		}
		if l == r {
			continue
		}
		at := 0 // where they begin to differ
		for at < len(l) && at < len(r) && l[at] == r[at] {
			at++
		}
		at = max(0, at-60)
		fmt.Fprintf(&out, "  %s: %.300s\n    was %.200s\n    is  %.200s\n", process, l, l[min(at, len(l)):], r[min(at, len(r)):])
		if len(x) != len(y) && (strings.HasPrefix(l, "map ") != strings.HasPrefix(r, "map ") || strings.HasPrefix(l, "fd ") != strings.HasPrefix(r, "fd ")) {
			break // the rest is out of step
		}
	}
	return out.String()
}
