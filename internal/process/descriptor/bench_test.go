package descriptor

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

const fiftyScript = `
import os, sys, ctypes, select
libc = ctypes.CDLL(None)
os.chdir("/tmp")
for i in range(20): os.dup2(os.open("f%d" % (i % 5), os.O_RDWR | os.O_CREAT), 100 + i)
os.closerange(3, 100)
ps = [os.pipe() for i in range(8)]
es = [libc.eventfd(0, 0) for i in range(5)]
e = select.epoll()
for r, w in ps: e.register(r, select.EPOLLIN)
for i in range(6): os.dup(100 + i)
print("ready", flush=True)
sys.stdin.read()
`

// Timed with the process stopped once: what it takes of the frozen window.
func BenchmarkCapture(b *testing.B) {
	for _, bb := range []struct{ name, script string }{
		{"51", fiftyScript},
		{"few", "import os, sys\nos.chdir('/tmp')\nf = [open('f%d' % i, 'w') for i in range(3)]\nprint('ready', flush=True)\nsys.stdin.read()"},
	} {
		b.Run(bb.name, func(b *testing.B) {
			p := newBody(b).python(b, bb.script)
			numbers, err := List(p.Process.Pid, nil)
			if err != nil {
				b.Fatal(err)
			}
			proc := p.process()
			proc.Numbers = numbers
			proc.CloseOnExec = make([]bool, len(numbers))
			var c Capturer
			var files []*image.File
			stopped(b, []int{p.Process.Pid}, func() {
				before := cpuTime(b)
				defer func() { b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op") }()
				for b.Loop() {
					r, err := c.Capture([]Process{proc}, p.env())
					if err != nil {
						b.Fatal(err)
					}
					files = r.Files
				}
			})
			b.ReportMetric(float64(len(numbers)), "fds")
			b.ReportMetric(float64(len(files)), "files")
		})
	}
}

// cpuTime is what this thread has used, in nanoseconds: other load of the
// machine is not in it.
func cpuTime(b *testing.B) int64 {
	b.Helper()
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		b.Fatal(err)
	}
	return t.Nano()
}

func BenchmarkOpen(b *testing.B) {
	body := newBody(b)
	p := body.python(b, fiftyScript)
	r := p.mustCapture(b)
	target := Target{Root: body.root}
	for i, f := range r.Files { // the session's pipes are not what is timed
		if f.Kind == image.Session {
			r.Files[i] = &image.File{Kind: image.Device, Path: "/dev/null", Mode: unix.S_IFCHR, Rdev: unix.Mkdev(1, 3)}
		}
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := cpuTime(b)
	for b.Loop() {
		o, err := Open(r.Files, r.Terminals, target)
		if err != nil {
			b.Fatal(err)
		}
		if err := o.Close(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op")
}
