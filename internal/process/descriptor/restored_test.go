package descriptor

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/namespace"
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// restored is a stub that has the descriptors of a captured process.
type restored struct {
	pid, pidfd int
	session    [3]*os.File // outer ends of the session's pipes
	t          testing.TB
	tr         *tracee.Tracee
	dups       []int // of its descriptors
}

// restore puts what was captured of one process into a stub in the body. It
// runs on this goroutine's thread, which stays locked.
func (b *body) restore(t testing.TB, r *Result) *restored {
	t.Helper()
	return b.restoreAll(t, r)[0]
}

func (b *body) restoreAll(t testing.TB, r *Result) (all []*restored) {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	var outer [3]*os.File
	var inner [3]*os.File
	for i := range 3 {
		pr, pw, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			outer[i], inner[i] = pw, pr
		} else {
			outer[i], inner[i] = pr, pw
		}
		t.Cleanup(func() { _ = pr.Close(); _ = pw.Close() })
	}
	before := openFDs(t)
	target := b.target
	target.Root = b.root
	target.Session = func(id string, n int) (int, bool) {
		return int(inner[n].Fd()), id == "se-test"
	}
	o, err := Open(r.Files, r.Terminals, target)
	if err != nil {
		t.Fatal(err)
	}
	masters := 0
	for i, term := range r.Terminals {
		if term.SessionID != "" {
			fd := o.TakeMaster(i)
			masters++
			b.masters[term.SessionID] = fd
			t.Cleanup(func() { _ = unix.Close(fd) })
		}
	}
	if err := o.Seal(); err != nil {
		t.Fatal(err)
	}
	var socks, controls []int
	var makers []Maker
	for i, table := range r.Tables {
		s, sock := b.stub(t)
		v := &restored{pid: s.PID(), session: outer, t: t}
		if v.pidfd, err = unix.PidfdOpen(v.pid, 0); err != nil {
			t.Fatal(err)
		}
		if v.tr, err = tracee.Seize(v.pid, tracee.OptionsRestore); err != nil {
			t.Fatal(err)
		}
		if b.before != nil {
			b.before(v.pid)
		}
		pid := v.pid
		if b.pids != nil {
			pid = b.pids[i]
		}
		makers = append(makers, Maker{PID: pid, Host: v.pid, PIDFD: v.pidfd, Table: table, Control: testControl, Run: v.tr.Run,
			Limit: func(n int) error {
				var now unix.Rlimit
				if err := unix.Prlimit(v.pid, unix.RLIMIT_NOFILE, nil, &now); err != nil || now.Cur >= uint64(n) {
					return err
				}
				now.Cur = uint64(n)
				return unix.Prlimit(v.pid, unix.RLIMIT_NOFILE, &now, nil)
			},
		})
		socks = append(socks, sock)
		all = append(all, v)
	}
	if err := o.OwnPipes(makers[0].Host); err != nil {
		t.Fatal(err)
	}
	if err := o.MakeSockets(makers); err != nil {
		t.Fatal(err)
	}
	for i, v := range all {
		control, err := o.Install(func(in Installation) error { return v.run(socks[i], in) }, r.Tables[i], testControl)
		if err != nil {
			t.Fatal(err)
		}
		controls = append(controls, control)
	}
	if b.between != nil {
		b.between(o, all)
	}
	for i, v := range all {
		leads := -1
		if b.leads != nil {
			leads = b.leads[i]
		}
		err := o.OpenLate(func(in Installation) error { return v.run(socks[i], in) }, Opening{Table: r.Tables[i], PIDFD: v.pidfd, Terminal: leads, Control: controls[i]})
		if err != nil {
			t.Fatal(err)
		}
	}
	for i, v := range all {
		if err := o.Complete(func(in Installation) error { return v.run(socks[i], in) }, Completion{Table: r.Tables[i], Control: controls[i]}); err != nil {
			t.Fatal(err)
		}
	}
	if err := o.Finish(); err != nil {
		t.Fatal(err)
	}
	for i, v := range all {
		batch := tracee.NewBatch()
		batch.Call(unix.SYS_CLOSE, controls[i])
		if err := v.run(socks[i], Installation{Batch: batch}); err != nil {
			t.Fatal(err)
		}
	}
	if err := o.Close(); err != nil {
		t.Fatal(err)
	}
	for i, v := range all {
		_ = unix.Close(socks[i])
		t.Cleanup(func() { _ = unix.Close(v.pidfd) })
	}
	for _, f := range inner {
		_ = f.Close()
	}
	if after := openFDs(t); after != before-3+2*len(all)+masters { // a pidfd and the stub's server each
		t.Errorf("restore left %d descriptors open", after-before+3-2*len(all)-masters)
	}
	return all
}

const testControl = 200

// stub starts a stub in the body with a control socket of the test's own.
func (b *body) stub(t testing.TB) (*tracee.Server, int) {
	t.Helper()
	p, err := tracee.NewProgram()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	s, err := p.Spawn()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	sp, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ns, err := unix.Open(fmt.Sprintf("/proc/%d/ns/mnt", b.holder.Process.Pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	batch := tracee.NewBatch()
	batch.ReceiveFDs(3)
	batch.Call(unix.SYS_SETNS, 0, unix.CLONE_NEWNS)
	batch.Call(unix.SYS_SETNS, 1, unix.CLONE_NEWNET)
	batch.Call(unix.SYS_DUP3, 2, testControl, unix.O_CLOEXEC)
	batch.Call(unix.SYS_CLOSE_RANGE, 0, 2, 0)
	net, err := namespace.Open(b.holder.Process.Pid, namespace.Network)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Do(batch, ns, net, sp[1]); err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(net)
	_ = unix.Close(ns)
	_ = unix.Close(sp[1])
	return s, sp[0]
}

func (v *restored) run(sock int, in Installation) error {
	for _, m := range in.Messages {
		if err := unix.Sendmsg(sock, []byte{0}, unix.UnixRights(m...), nil, unix.MSG_NOSIGNAL); err != nil {
			return err
		}
	}
	return v.tr.Run(in.Batch)
}

// fd duplicates a descriptor of the restored process.
func (v *restored) fd(n int) int {
	v.t.Helper()
	fd, err := unix.PidfdGetfd(v.pidfd, n, 0)
	if err != nil {
		v.t.Fatalf("descriptor %d: %v", n, err)
	}
	if v.dups == nil {
		v.t.Cleanup(func() {
			for _, fd := range v.dups {
				_ = unix.Close(fd)
			}
		})
	}
	v.dups = append(v.dups, fd)
	return fd
}

// describe is what /proc says of a descriptor, without what differs from one
// incarnation to the next.
func describe(t testing.TB, pid, n int) string {
	t.Helper()
	link, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, n))
	if err != nil {
		t.Fatal(err)
	}
	var keep []string
	for l := range strings.Lines(info(t, pid, n)) {
		name, value, _ := strings.Cut(strings.TrimSpace(l), ":")
		switch name {
		case "mnt_id", "ino", "eventfd-id", "scm_fds", "it_value", "ticks":
		case "flags":
			// O_LARGEFILE means nothing to 64-bit programs, and TIOCGPTPEER
			// leaves it out.
			n, err := strconv.ParseInt(strings.TrimSpace(value), 8, 64)
			if err != nil {
				t.Fatal(err)
			}
			keep = append(keep, fmt.Sprintf("flags%#o", n&^0o100000))
		case "tfd":
			f := strings.Fields(value)
			keep = append(keep, "tfd "+strings.Join(f[:5], " "))
		default:
			keep = append(keep, name+strings.TrimSpace(value))
		}
	}
	slices.Sort(keep)
	for _, kind := range []string{"pipe", "socket"} {
		if strings.HasPrefix(link, kind+":") {
			link = kind
		}
	}
	return link + " " + strings.Join(keep, " ")
}

// info is the text of a descriptor's fdinfo.
func info(t testing.TB, pid, n int) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%d", pid, n))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// sameTable compares all descriptors of the target with those of the restored
// process.
func sameTable(t testing.TB, want map[int]string, v *restored) {
	t.Helper()
	got := descriptions(t, v.pid)
	for n, w := range want {
		if got[n] != w {
			t.Errorf("descriptor %d is %q, was %q", n, got[n], w)
		}
	}
	for n := range got {
		if _, ok := want[n]; !ok {
			t.Errorf("descriptor %d (%s) was not there", n, got[n])
		}
	}
}

func descriptions(t testing.TB, pid int) map[int]string {
	t.Helper()
	l, err := List(pid, nil)
	if err != nil {
		t.Fatal(err)
	}
	m := map[int]string{}
	for _, n := range l {
		m[n] = describe(t, pid, n)
	}
	return m
}

func fileAt(r *Result, proc, number int) *image.File {
	for _, d := range r.Tables[proc] {
		if d.Number == number {
			return r.Files[d.File]
		}
	}
	return nil
}

// end kills the restored process and closes what this test has of it.
func (v *restored) end() {
	v.t.Helper()
	if err := unix.Kill(v.pid, unix.SIGKILL); err != nil {
		v.t.Fatal(err)
	}
	if _, err := unix.Wait4(v.pid, nil, unix.WALL, nil); err != nil {
		v.t.Fatal(err)
	}
	for _, fd := range v.dups {
		_ = unix.Close(fd)
	}
	v.dups = nil
}
