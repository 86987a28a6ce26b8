package engine_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/failpoint"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// remains are what an engine leaves on the machine while it works: processes,
// mounts and cgroups, by kind.
type remains struct{ processes, mounts, cgroups int }

func (h *host) remains() (r remains) {
	h.t.Helper()
	maps, err := filepath.Glob("/proc/[0-9]*/uid_map")
	check(h.t, err)
	for _, m := range maps {
		if b, err := os.ReadFile(m); err == nil && strings.Contains(string(b), fmt.Sprint(idBase)) {
			r.processes++
		}
	}
	b, err := os.ReadFile("/proc/self/mountinfo")
	check(h.t, err)
	for line := range strings.Lines(string(b)) { // others mount, too
		if strings.Contains(line, filepath.Dir(h.cfg.Pool)) {
			r.mounts++
		}
	}
	for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		ds, err := filepath.Glob(filepath.Join(pattern, h.cfg.CgroupParent, "family", "*"))
		check(h.t, err)
		for _, d := range ds {
			var st unix.Stat_t
			if unix.Stat(d, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
				r.cgroups++
			}
		}
	}
	return r
}

// Each step of capture and restore fails in turn: the live tree goes on, nothing
// is left, and what comes next works.
func TestKindsOfFailures(t *testing.T) {
	h, outer := newHost(t, withoutStandbys), t
	box := h.create()
	x := h.obedient(box)
	x.must("a tree of every shape", `
def idle():
    while True: time.sleep(1000)
kids = [child(idle) for _ in range(2)]
zombie = child(lambda: os._exit(3))
def many():
    for _ in range(3): threading.Thread(target=idle, daemon=True).start()
    idle()
threaded = child(many)
o = subprocess.run(['setsid', 'bash', '-c', 'sleep 1000 >/dev/null & sleep 1001 >/dev/null & echo $!'], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL); orphan = int(o.stdout)
def first():
    os.setpgid(0, 0); b = child(idle); os.write(w, b'%d' % b); os._exit(0)
r, w = os.pipe(); leader = child(first); os.waitpid(leader, 0); member = int(os.read(r, 100))
os.kill(kids[1], signal.SIGSTOP)
shared = mmap.mmap(-1, 8192); shared[0] = 1
gone = open('/tmp/gone', 'w+'); gone.write('content'); gone.flush(); os.unlink('/tmp/gone')
until(lambda: stat(zombie)['state'] == 'Z' and stat(kids[1])['state'] == 'T')
def fine():
    until(lambda: stat(kids[1])['state'] == 'T', 'it stands as before'); same(stat(zombie)['state'], 'Z')
    for p in kids + [threaded, orphan, member]:
        until(lambda: stat(p)['state'] in 'ST', 'sleep of %d' % p); same(status(p, 'TracerPid'), '0')
    same(shared[0], 1); gone.seek(0); same(gone.read(), 'content')
`)
	fine := func(when string) {
		t.Helper()
		x.must(when, "fine()")
	}
	c := h.checkpoint(box)
	fine("before")
	points := failpoint.Names()
	for _, prefix := range []string{"process.capture.", "process.restore."} {
		before := h.settled()
		for _, p := range points {
			if !strings.HasPrefix(p, prefix) {
				continue
			}
			t.Run(p, func(t *testing.T) {
				x.t, h.t = t, t
				defer func() { x.t, h.t = outer, outer }()
				t.Run("on", func(t *testing.T) {
					failpoint.Enable(t, p, "error")
					var err error
					if prefix == "process.capture." {
						_, err = h.engine.Checkpoint(background, control.CheckpointRequest{Sandbox: box, Checkpoint: h.id("cp")})
					} else {
						_, err = forked(h.engine.Fork(background, control.ForkRequest{
							From: control.CheckpointRef{Sandbox: box, Checkpoint: c.ID}, Sandboxes: []string{h.id("sb")}, Hostnames: []string{""},
						}))
					}
					if err == nil || !strings.Contains(err.Error(), p) {
						t.Fatalf("got %v", err)
					}
				})
				fine("after the failure")
				before = h.settle(before)
			})
		}
		n := h.checkpoint(box)
		fine("after a checkpoint")
		_, ss := h.rollback(box, n.ID)
		x = ss[x.id]
		fine("after a rollback")
	}
	if !slices.ContainsFunc(points, func(p string) bool { return strings.HasPrefix(p, "process.capture.") }) {
		t.Error("no failpoints of a capture")
	}
}

// settle waits until no more is left than before, and returns what is: what was there before
// may have been on its way to end.
func (h *host) settle(before remains) (now remains) {
	h.t.Helper()
	h.engine.Wait() // what stands ready is there again
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if now = h.remains(); now.processes <= before.processes && now.mounts <= before.mounts && now.cgroups <= before.cgroups {
			return now
		}
	}
	h.t.Errorf("%+v are left, before %+v", now, before)
	return before
}

// settled waits until what ends in the background has.
func (h *host) settled() remains {
	h.t.Helper()
	h.engine.Wait()
	last, same := h.remains(), 0
	for range 200 {
		time.Sleep(10 * time.Millisecond)
		if now := h.remains(); now != last {
			last, same = now, 0
		} else if same++; same == 8 {
			break
		}
	}
	return last
}
