package engine_test

import (
	"fmt"
	"testing"
)

// watcher reads the clock in a loop, and beside it how long its thread has
// waited for a processor (schedstat, see proc(5)). Asked for the longest time
// between two readings since it was asked last, it says that, and how much of it
// was such waiting, in nanoseconds.
const watcher = `
import os, select, sys, time
fd = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
def waited(): return int(os.pread(fd, 100, 0).split()[1])
now = time.monotonic_ns
longest, wait = 0, 0
last, lastwait = now(), waited()
def read():
    global longest, wait, last, lastwait
    this, thiswait = now(), waited()
    if this - last > longest: longest, wait = this - last, thiswait - lastwait
    last, lastwait = this, thiswait
print("= ready", flush=True)
while True:
    for _ in range(100): read()
    if select.select([0], [], [], 0)[0]:
        if not sys.stdin.readline(): break
        read() # it may have stood since the last time
        answer = "= %d %d" % (longest, wait)
        longest, wait = 0, 0
        print(answer, flush=True) # it may stand at once
`

// What a checkpoint reports as frozen is what a program inside can see of it.
//
// The program stands from some point in the stage "stop" to some point in the
// stage "resume", so the gap in its readings is never shorter than the stages
// between. It may be longer than what is reported by the time that the
// program waits for a processor, which it knows itself, and by what the
// machine takes without telling: so most gaps, not all, must be within what
// was reported.
func TestFrozenTimeIsWhatAProgramSees(t *testing.T) {
	const rounds, slackNS = 11, 1_000_000
	h := newHost(t)
	box := h.create()
	w := h.exec(box, false, "python3", "-c", watcher)
	w.until("= ready")
	ask := func() (gap, wait int64) {
		if _, err := fmt.Sscan(w.ask("?", "= "), &gap, &wait); err != nil {
			t.Fatal(err)
		}
		return gap, wait
	}
	h.checkpoint(box) // the first takes all memory
	within := 0
	for range rounds {
		ask()
		c := h.checkpoint(box)
		gap, wait := ask()
		inside := c.StageNS["capture"] + c.StageNS["snapshot"]
		if inside <= 0 || inside > c.FrozenNS {
			t.Fatalf("the stages take %d ns of %d frozen: %v", inside, c.FrozenNS, c.StageNS)
		}
		if gap < inside {
			t.Errorf("the program saw a gap of %d ns, and its threads stood for %d: %v", gap, inside, c.StageNS)
		}
		if gap-wait <= c.FrozenNS+slackNS {
			within++
		}
		t.Logf("frozen %d, of it between stop and resume %d; seen %d, of it waiting for a processor %d", c.FrozenNS, inside, gap, wait)
	}
	if within <= rounds/2 {
		t.Errorf("only %d of %d gaps are within what was reported", within, rounds)
	}
}
