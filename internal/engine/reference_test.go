package engine_test

import (
	"fmt"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// reference is the sandbox that figures are given for: a bash with variables
// and a background job on a terminal, and a python with a 100 MB heap, four
// threads besides the main one, and a file that it appends to.
type reference struct {
	h            *host
	box          string
	bash, python *talk
}

const referenceProgram = `
import os, sys, threading, time
S = int(sys.argv[1]) << 20
b = bytearray(S)
for i in range(0, S, 4096): b[i] = 1
n = 0
lock = threading.Lock(); counts = [0]*4; tids = [0]*4
def run(k):
    tids[k] = threading.get_native_id()
    local = 0
    while True:
        with lock: counts[k] += 1
        local += 1
        if local != counts[k] or threading.get_native_id() != tids[k]: os._exit(9)
        time.sleep(0.003)
for k in range(4): threading.Thread(target=run, args=(k,), daemon=True).start()
log = open('/root/log', 'ab', buffering=0)
def dirty(pages, files):
    global n
    n += 1
    P = S // 4096
    for k in range(pages): b[((k*49 + n*7) % P)*4096] = n & 255
    for k in range(files):
        with open('/root/f%d' % k, 'w') as f: f.write(str(n))
    return n
def sums():
    return sum(b[i] for i in range(0, S, 4096))
def append():
    log.write(b'%d\n' % n); return os.path.getsize('/root/log')
def threads():
    a = list(counts)
    end = time.monotonic() + 5
    while time.monotonic() < end:
        if all(x < y for x, y in zip(a, counts)): return 'run'
        time.sleep(0.002)
    return 'stand'
print('= ready', flush=True)
for line in sys.stdin:
    try: v = eval(line)
    except SyntaxError: v = exec(line)
    print('=', v, flush=True)
`

func newReference(h *host, heapMB int) *reference {
	h.t.Helper()
	r := &reference{h: h, box: h.create()}
	r.bash = h.exec(r.box, true, "bash", "--norc", "--noediting")
	r.python = h.exec(r.box, false, "python3", "-c", referenceProgram, fmt.Sprint(heapMB))
	r.python.until("= ready")
	r.bash.say("stty -echo; x=1; sleep 1000 & j=$!")
	r.bash.ask("echo started", "started")
	return r
}

// follow takes over the sessions of a new incarnation.
func (r *reference) follow(ss map[string]*talk) {
	r.h.t.Helper()
	r.bash, r.python = ss[r.bash.id], ss[r.python.id]
	if r.bash == nil || r.python == nil {
		r.h.t.Fatalf("sessions are missing: %v", ss)
	}
}

func (r *reference) check(x, n int) {
	t := r.h.t
	t.Helper()
	if got := r.bash.ask("echo x=$x", "x="); got != fmt.Sprint(x) {
		t.Errorf("bash's variable is %q, want %d", got, x)
	}
	if got := r.bash.ask("kill -0 $j && echo job $(jobs | wc -l)", "job "); got != "1" {
		t.Errorf("bash has %q jobs", got)
	}
	if got := r.bash.ask("echo size $(stty size)", "size "); got != "24 80" {
		t.Errorf("terminal has size %q", got)
	}
	if got := r.python.ask("n", "= "); got != fmt.Sprint(n) {
		t.Errorf("python's counter is %q, want %d", got, n)
	}
	if got := r.python.ask("threads()", "= "); got != "run" {
		t.Errorf("threads %s", got)
	}
}

func TestReferenceSandbox(t *testing.T) {
	h := newHost(t)
	r := newReference(h, 100)
	r.check(1, 0)
	r.python.ask("dirty(512, 10)", "= ")
	sum := r.python.ask("sums()", "= ")
	size := r.python.ask("append()", "= ")
	c1 := h.checkpoint(r.box)
	r.bash.ask("x=2; echo set", "set")
	r.python.ask("dirty(512, 10)", "= ")
	r.python.ask("append()", "= ")
	sum2 := r.python.ask("sums()", "= ")
	c2 := h.checkpoint(r.box)
	t.Logf("second checkpoint: frozen %d us, %d KB dirty: %v", c2.FrozenNS/1000, c2.DirtyBytes>>10, c2.StageNS)
	r.bash.ask("x=3; echo set", "set")
	r.python.ask("dirty(512, 10)", "= ")
	for range 2 {
		b, ss := h.rollback(r.box, c1.ID)
		t.Logf("rollback: %d us %v", b.ElapsedNS/1000, b.StageNS)
		r.follow(ss)
		r.check(1, 1)
		if got := r.python.ask("sums()", "= "); got != sum {
			t.Errorf("heap sums to %s, want %s", got, sum)
		}
		b, ss = h.rollback(r.box, c2.ID)
		r.follow(ss)
		r.check(2, 2)
		if got := r.python.ask("sums()", "= "); got != sum2 {
			t.Errorf("heap sums to %s, want %s", got, sum2)
		}
		if got := r.python.ask("append()", "= "); got <= size {
			t.Errorf("log has %s bytes, had %s", got, size)
		}
	}
}

func percentile(d []time.Duration, p float64) time.Duration {
	s := append([]time.Duration(nil), d...)
	sort.Slice(s, func(i, j int) bool { return s[i] < s[j] })
	return s[min(len(s)-1, int(p*float64(len(s))))]
}

func BenchmarkCheckpoint(b *testing.B) {
	h := newHost(b)
	r := newReference(h, 100)
	h.checkpoint(r.box)
	var frozen []time.Duration
	stages := map[string][]time.Duration{}
	for b.Loop() {
		r.python.ask("dirty(512, 10)", "= ")
		c := h.checkpoint(r.box)
		frozen = append(frozen, time.Duration(c.FrozenNS))
		if c.FrozenNS > 15e6 {
			b.Logf("%d us: %v", c.FrozenNS/1000, c.StageNS)
		}
		for k, v := range c.StageNS {
			stages[k] = append(stages[k], time.Duration(v))
		}
	}
	report(b, "frozen", frozen)
	for k, v := range stages {
		report(b, strings.ReplaceAll(k, " ", "-"), v)
	}
}

func BenchmarkRollback(b *testing.B) { benchmarkRollback(b, newHost(b, withoutStandbys)) }

// A rollback that finds a standby, as it does after a moment of work.
func BenchmarkRollbackStandby(b *testing.B) { benchmarkRollback(b, newHost(b)) }

func benchmarkRollback(b *testing.B, h *host) {
	r := newReference(h, 100)
	h.checkpoint(r.box)
	r.python.ask("dirty(512, 10)", "= ")
	c := h.checkpoint(r.box)
	var took, first []time.Duration
	stages := map[string][]time.Duration{}
	for b.Loop() {
		h.engine.Wait()
		begin := time.Now()
		x, ss := h.rollback(r.box, c.ID)
		r.follow(ss)
		r.python.ask("n", "= ")
		first = append(first, time.Since(begin))
		took = append(took, time.Duration(x.ElapsedNS))
		for k, v := range x.StageNS {
			stages[k] = append(stages[k], time.Duration(v))
		}
	}
	report(b, "elapsed", took)
	report(b, "first-reply", first)
	for k, v := range stages {
		report(b, strings.ReplaceAll(k, " ", "-"), v)
	}
}

func report(b *testing.B, name string, d []time.Duration) {
	us := func(x time.Duration) float64 { return float64(x.Microseconds()) }
	b.ReportMetric(us(percentile(d, .5)), name+"-p50-us")
	if name == "frozen" || name == "elapsed" || name == "first-reply" {
		b.ReportMetric(us(percentile(d, .99)), name+"-p99-us")
	}
}

// A hundred copies of the reference sandbox.
func BenchmarkFork100(b *testing.B) {
	h := newHost(b, withoutStandbys)
	r := newReference(h, 100)
	c := h.checkpoint(r.box)
	var took []time.Duration
	for b.Loop() {
		ids := make([]string, 100)
		for i := range ids {
			ids[i] = h.id("sb")
		}
		begin := time.Now()
		_, err := forked(h.engine.Fork(background, control.ForkRequest{
			From: control.CheckpointRef{Sandbox: r.box, Checkpoint: c.ID}, Sandboxes: ids, Hostnames: make([]string, 100),
		}))
		check(b, err)
		took = append(took, time.Since(begin))
		b.StopTimer()
		for _, id := range ids {
			check(b, h.engine.Remove(background, control.SandboxRequest{Sandbox: id}))
		}
		b.StartTimer()
	}
	report(b, "elapsed", took)
}

// After fork -n 4, five sandboxes go on apart.
func TestForksGoOnApart(t *testing.T) {
	h := newHost(t)
	r := newReference(h, 20)
	r.python.ask("dirty(512, 10)", "= ")
	c := h.checkpoint(r.box)
	ids := []string{h.id("sb"), h.id("sb"), h.id("sb"), h.id("sb")}
	_, err := forked(h.engine.Fork(background, control.ForkRequest{
		From: control.CheckpointRef{Sandbox: r.box, Checkpoint: c.ID}, Sandboxes: ids, Hostnames: make([]string, 4),
	}))
	check(t, err)
	all := []*reference{r}
	for _, id := range ids {
		all = append(all, &reference{h: h, box: id, bash: h.adopt(id, r.bash.id), python: h.adopt(id, r.python.id)})
	}
	for i, x := range all {
		x.check(1, 1)
		x.bash.ask(fmt.Sprintf("x=%d; echo set", 10+i), "set")
		for range i {
			x.python.ask("dirty(512, 10)", "= ")
		}
	}
	sums := map[string]bool{}
	for i, x := range all {
		x.check(10+i, 1+i)
		if got := x.python.ask("open('/root/f3').read()", "= "); got != fmt.Sprint(1+i) {
			t.Errorf("sandbox %d has %q in its file, want %d", i, got, 1+i)
		}
		sums[x.python.ask("sums()", "= ")] = true
	}
	if len(sums) != len(all) {
		t.Errorf("heaps of five sandboxes that went on apart have %d different sums", len(sums))
	}
}
