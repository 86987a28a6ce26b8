package engine_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/sandtree/sandtree/internal/supervisor/control"
)

var (
	walkSteps = flag.Int("walk", 1000, "steps of the random walk")
	walkSeed  = flag.Uint64("walkseed", 0, "seed of the random walk; 0: a new one")
)

// walker keeps a checksum of its heap and files that it carries on with each
// write, and can compare it with what is there.
const walker = `
import os, random, sys, threading, zlib
P = 4096
heap = bytearray(1024 * P)
pages = {}
files = {}
steps = 0
def write(seed):
    global steps
    r = random.Random(seed)
    for _ in range(r.randrange(1, 60)):
        k = r.randrange(1024); v = r.randbytes(64)
        heap[k*P:k*P+64] = v; pages[k] = zlib.crc32(v)
    for _ in range(r.randrange(4)):
        name = '/root/w%d' % r.randrange(12)
        if name in files and r.random() < .3:
            os.remove(name); del files[name]; continue
        v = r.randbytes(r.randrange(20000))
        with open(name, 'wb') as f: f.write(v)
        files[name] = zlib.crc32(v)
    steps += 1
    return steps
def verify():
    for k, c in pages.items():
        if zlib.crc32(heap[k*P:k*P+64]) != c: return 'page %d differs' % k
    there = {'/root/' + n for n in os.listdir('/root') if n[0] == 'w'}
    if there != set(files): return 'files %s, not %s' % (sorted(there), sorted(files))
    for name, c in files.items():
        with open(name, 'rb') as f:
            if zlib.crc32(f.read()) != c: return name + ' differs'
    if not side.is_alive(): return 'the thread is gone'
    return 'whole %d %d' % (steps, zlib.crc32(repr(sorted(pages.items())).encode()))
def run():
    x = 0
    while not stop.wait(.01): x += 1
stop = threading.Event()
side = threading.Thread(target=run, daemon=True); side.start()
print('= ready', flush=True)
for line in sys.stdin: print('=', eval(line), flush=True)
`

// walkBox is a sandbox of the walk, and what its program said of itself at each
// of its checkpoints.
type walkBox struct {
	id     string
	talk   *talk
	said   map[string]string
	latest []string // checkpoints, oldest first
}

func TestRandomWalk(t *testing.T) {
	seed := *walkSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	h := newHost(t)
	first := &walkBox{id: h.create(), said: map[string]string{}}
	first.talk = h.exec(first.id, false, "python3", "-c", walker)
	first.talk.until("= ready")
	boxes := []*walkBox{first}
	did := map[string]int{}
	for step := range *walkSteps {
		b := boxes[r.IntN(len(boxes))]
		what := walkStep(h, r, b, &boxes)
		did[what]++
		if got := b.talk.ask("verify()", "= "); len(got) < 5 || got[:5] != "whole" {
			t.Fatalf("step %d, %s of %s: %s", step, what, b.id, got)
		}
		if t.Failed() {
			t.Fatalf("step %d, %s of %s", step, what, b.id)
		}
	}
	for _, b := range boxes {
		if got := b.talk.ask("verify()", "= "); got[:5] != "whole" {
			t.Errorf("%s in the end: %s", b.id, got)
		}
	}
	t.Logf("%d steps: %v", *walkSteps, did)
}

func walkStep(h *host, r *rand.Rand, b *walkBox, boxes *[]*walkBox) string {
	h.t.Helper()
	pick := func() string { return b.latest[r.IntN(len(b.latest))] }
	switch k := r.IntN(100); {
	case k < 40:
		b.talk.ask(fmt.Sprintf("write(%d)", r.Uint32()), "= ")
		return "write"
	case k < 65 || len(b.latest) == 0:
		said := b.talk.ask("verify()", "= ")
		c := h.checkpoint(b.id)
		b.said[c.ID] = said
		b.latest = append(b.latest, c.ID)
		return "checkpoint"
	case k < 85:
		c := pick()
		if r.IntN(2) == 0 { // from a standby, if it is that checkpoint's
			h.engine.Wait()
		}
		_, ss := h.rollback(b.id, c)
		b.talk = ss[b.talk.id]
		if got := b.talk.ask("verify()", "= "); got != b.said[c] {
			h.t.Errorf("rolled back to %s it says %q, and said %q there", c, got, b.said[c])
		}
		return "rollback"
	case k < 92:
		if len(*boxes) == 5 {
			gone := 1 + r.IntN(4) // the first stays
			if (*boxes)[gone] == b {
				return "nothing"
			}
			check(h.t, h.engine.Remove(background, control.SandboxRequest{Sandbox: (*boxes)[gone].id}))
			*boxes = append((*boxes)[:gone], (*boxes)[gone+1:]...)
		}
		c := pick()
		id := h.id("sb")
		_, err := forked(h.engine.Fork(background, control.ForkRequest{
			From: control.CheckpointRef{Sandbox: b.id, Checkpoint: c}, Sandboxes: []string{id}, Hostnames: []string{""},
		}))
		check(h.t, err)
		f := &walkBox{id: id, talk: h.adopt(id, b.talk.id), said: map[string]string{}}
		if got := f.talk.ask("verify()", "= "); got != b.said[c] {
			h.t.Errorf("forked from %s it says %q, and %q was said there", c, got, b.said[c])
		}
		*boxes = append(*boxes, f)
		return "fork"
	default:
		i := r.IntN(len(b.latest))
		check(h.t, h.engine.CheckpointRemove(background, control.CheckpointRef{Sandbox: b.id, Checkpoint: b.latest[i]}))
		delete(b.said, b.latest[i])
		b.latest = append(b.latest[:i], b.latest[i+1:]...)
		return "remove"
	}
}
