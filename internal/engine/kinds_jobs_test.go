package engine_test

import "testing"

// A shell on a terminal has its jobs after rollback, running and stopped, and
// brings them back and forth.
func TestKindsOfJobs(t *testing.T) {
	h := newHost(t)
	box := h.create()
	x := h.exec(box, true, "bash", "--norc", "--noprofile", "-i")
	x.say("stty -echo; echo begin")
	x.until("begin")
	x.say("sleep 1000 & sleep 2000 & kill -STOP %2; v=kept; true | sleep 3000 &")
	x.ask("sleep 0.2; echo on", "on")
	w := h.obedient(box)
	shell := x.ask("echo shell $$", "shell ")
	foreground := func(w *talk) {
		t.Helper()
		// And until it runs: going on would take a stop back that came before.
		w.must("wait for the foreground", "until(lambda: stat("+shell+")['foreground'] != "+shell+" and stat(stat("+shell+")['foreground'])['state'] == 'S', 'foreground')")
	}
	c := h.checkpoint(box)
	jobs := func(x *talk, when string) {
		t.Helper()
		x.say("jobs; echo end of jobs")
		for _, want := range []string{"[1]", "[2]+  Stopped", "[3]-  Running"} {
			if got := x.until(want); want == "[1]" && got == "" {
				t.Errorf("%s: %q", when, got)
			}
		}
		x.until("end of jobs")
	}
	jobs(x, "live")
	x.ask("kill -KILL %1 %2 %3; v=lost; wait; echo gone", "gone")
	for i := range 2 {
		_, ss := h.rollback(box, c.ID)
		x, w = ss[x.id], ss[w.id]
		jobs(x, "rolled back")
		if got := x.ask("echo v=$v", "v="); got != "kept" {
			t.Errorf("v is %q", got)
		}
		if i == 1 {
			c = h.checkpoint(box)
		}
		x.say("fg %2")
		x.until("sleep 2000")
		foreground(w)
		x.sayRaw("\x1a")
		x.until("[2]+  Stopped")
		x.ask("bg %2; echo on", "on")
		x.ask("jobs -r | wc -l", "3")
		x.say("fg %1")
		x.until("sleep 1000")
		foreground(w)
		x.sayRaw("\x03")
		x.ask("echo status $?", "status 130")
		x.ask("kill %2; wait %2; echo status $?", "status 143")
		x.ask("jobs -r | wc -l", "1")
	}
	for _, f := range h.fork(box, c.ID, 2) {
		y := h.adopt(f, x.id)
		jobs(y, "forked")
	}
}

// Many children of one process, some of which clone their siblings at a restore: all are
// their parent's, in their order, with what they had.
func TestKindsOfManyChildren(t *testing.T) {
	h := newHost(t, withoutStandbys)
	box := h.create()
	x := h.obedient(box)
	x.must("children", `
def answer(i):
    b = bytearray([i]) * 20000
    signal.signal(signal.SIGTERM, lambda *a: os._exit(i if b == bytearray([i]) * 20000 else 99))
    while True: signal.pause()
def one(i):
    if i % 5 == 1: os.setsid()
    if i % 5 == 2: os.setpgid(0, 0)
    if i % 7 == 3: child(lambda: answer(i))
    if i % 11 == 4: os._exit(i)
    answer(i)
kids = [child(lambda i=i: one(i)) for i in range(60)]
below = lambda p: open('/proc/%d/task/%d/children' % (p, p)).read().split()
def settled():
    for i, p in enumerate(kids):
        if i % 11 == 4:
            if i % 7 != 3 and stat(p)['state'] != 'Z': return False
        elif int(status(p, 'SigCgt'), 16) & 1 << 14 == 0: return False
        elif i % 7 == 3 and (not below(p) or int(status(int(below(p)[0]), 'SigCgt'), 16) & 1 << 14 == 0): return False
    return True
until(settled, 'all are ready')
def seen():
    return [below(os.getpid())] + [(p, below(p), sorted((k, v == 'Z' if k == 'state' else v) for k, v in stat(p).items())) for p in kids]
first = seen()
`)
	c := h.checkpoint(box)
	for range 2 {
		_, ss := h.rollback(box, c.ID)
		x = ss[x.id]
		x.must("all as before", "same(seen(), first)")
		c = h.checkpoint(box)
	}
	x.must("all answer", `
for p in kids:
    for q in below(p): os.kill(int(q), signal.SIGTERM)
    os.kill(p, signal.SIGTERM)
for i, p in enumerate(kids): same(os.WEXITSTATUS(os.waitpid(p, 0)[1]), i)
`)
}
