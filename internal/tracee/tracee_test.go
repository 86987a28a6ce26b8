package tracee

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func spawn(t *testing.T) *Server {
	t.Helper()
	p, err := NewProgram()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	s, err := p.Spawn()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Kill)
	return s
}

func TestBatchReturnsResultsAndOutputs(t *testing.T) {
	s := spawn(t)
	b := NewBatch()
	pid := b.Call(unix.SYS_GETPID)
	cwd := b.Output(64)
	b.Call(unix.SYS_GETCWD, cwd, 64)
	fd := b.Call(unix.SYS_OPEN, "/dev/zero", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	dup := b.Call(unix.SYS_DUP, fd)
	b.Call(unix.SYS_CLOSE, fd)
	b.Call(unix.SYS_CLOSE, dup)
	if err := s.Do(b); err != nil {
		t.Fatal(err)
	}
	if got := b.Value(pid); got != s.PID() {
		t.Errorf("getpid = %d, want %d", got, s.PID())
	}
	if got := string(cwd.Bytes()[:2]); got != "/\x00" {
		t.Errorf("getcwd = %q", got)
	}
	if b.Value(dup) != b.Value(fd)+1 {
		t.Errorf("dup gave %d after %d", b.Value(dup), b.Value(fd))
	}
}

func TestBatchStopsAtFirstError(t *testing.T) {
	s := spawn(t)
	b := NewBatch()
	tried := b.Try(unix.SYS_CLOSE, 9999)
	b.Call(unix.SYS_OPEN, "/no/such/file", unix.O_RDONLY, 0)
	after := b.Call(unix.SYS_GETPID)
	err := s.Do(b)
	var ce *CallError
	if !errors.As(err, &ce) || ce.Name != "open" || ce.Errno != unix.ENOENT || ce.Index != 1 {
		t.Fatalf("error %v", err)
	}
	if !strings.Contains(err.Error(), `"/no/such/file"`) {
		t.Errorf("the error does not name its argument: %v", err)
	}
	if _, err := b.Result(tried); !errors.Is(err, unix.EBADF) {
		t.Errorf("tried call: %v", err)
	}
	if _, err := b.Result(after); !errors.Is(err, unix.ENOSYS) {
		t.Errorf("call after the error: %v", err)
	}
	if err := s.Do(NewBatch()); err != nil {
		t.Errorf("the stub serves no more: %v", err)
	}
}

// What was queued behind a mark goes, with its data and outputs; what stands before it
// answers as before.
func TestTruncatedBatchEndsInAnotherWay(t *testing.T) {
	s := spawn(t)
	b := NewBatch()
	pid, cwd := b.Call(unix.SYS_GETPID), b.Output(64)
	b.Call(unix.SYS_GETCWD, cwd, 64)
	fixed := b.Mark()
	for _, path := range []string{"/proc/self/comm", "/no/such/file", "/proc/self/stat"} {
		b.Truncate(fixed)
		text := b.Output(16)
		fd := b.Try(unix.SYS_OPEN, path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		n := b.Try(unix.SYS_READ, fd, text, 16)
		b.Try(unix.SYS_CLOSE, fd)
		if err := s.Do(b); err != nil {
			t.Fatal(err)
		}
		if b.Value(pid) != s.PID() || string(cwd.Bytes()[:2]) != "/\x00" {
			t.Errorf("%s: getpid = %d, getcwd = %q", path, b.Value(pid), cwd.Bytes())
		}
		if there := path != "/no/such/file"; there != (b.Value(n) > 0) || there != (text.Bytes()[0] != 0) {
			t.Errorf("%s: read gave %d, %q", path, b.Value(n), text.Bytes())
		}
	}
	if got := b.Len(); got != 7 { // with the copies of the descriptor to two of them
		t.Errorf("%d operations are queued, want 7", got)
	}
}

func TestDescriptorsGoBothWays(t *testing.T) {
	s := spawn(t)
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(p[0])
	b := NewBatch()
	b.ReceiveFDs(1)
	b.Call(unix.SYS_WRITE, 0, "hello", 5)
	self := b.Call(unix.SYS_OPEN, "/proc/self/comm", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	b.SendFDs(self, 0)
	b.Call(unix.SYS_CLOSE_RANGE, 0, ControlFD-1, 0)
	got, err := s.DoReceive(b, 2, p[1])
	unix.Close(p[1])
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(got)
	buf := make([]byte, 16)
	if n, _ := unix.Read(p[0], buf); string(buf[:n]) != "hello" {
		t.Errorf("pipe has %q", buf[:n])
	}
	if _, err := unix.Write(got[1], []byte("x")); err != nil {
		t.Errorf("the pipe that came back: %v", err)
	}
	left, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.PID()))
	if err != nil || len(left) != 2 {
		t.Errorf("the stub holds %d descriptors (%v), want its socket and signalfd", len(left), err)
	}
}

func TestBadDescriptorIsNotSent(t *testing.T) {
	s := spawn(t)
	for range 3 {
		b := NewBatch()
		b.ReceiveFDs(1)
		if err := s.Do(b, -1); !errors.Is(err, unix.EBADF) || errors.Is(err, ErrGone) {
			t.Errorf("error %v", err)
		}
		b = NewBatch()
		pid := b.Call(unix.SYS_GETPID)
		if err := s.Do(b); err != nil || b.Value(pid) != s.PID() {
			t.Fatalf("the stub serves no more: %d, %v", b.Value(pid), err)
		}
	}
}

func TestForkedChildrenServeAndReport(t *testing.T) {
	seed := spawn(t)
	sp, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	b := NewBatch()
	b.ReceiveFDs(1)
	r, _ := b.Fork(CloneArgs{ExitSignal: uint64(unix.SIGCHLD)}, EndServe, func(c *Batch) {
		c.Call(unix.SYS_DUP3, 0, ControlFD, unix.O_CLOEXEC)
		c.Call(unix.SYS_CLOSE, 0)
		c.ReportExits()
	})
	b.Call(unix.SYS_CLOSE, 0)
	err = seed.Do(b, sp[1])
	unix.Close(sp[1])
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(b.Value(r), sp[0])
	if err := s.Hello(); err != nil {
		t.Fatal(err)
	}
	type exit struct {
		pid    int
		status unix.WaitStatus
	}
	exits := make(chan exit, 1)
	i, err := NewInit(s, func(pid int, st unix.WaitStatus) { exits <- exit{pid, st} })
	if err != nil {
		t.Fatal(err)
	}
	b = NewBatch()
	k, c := b.Fork(CloneArgs{Flags: unix.CLONE_VM | unix.CLONE_VFORK, ExitSignal: uint64(unix.SIGCHLD)}, EndExit, func(c *Batch) {
		c.Try(unix.SYS_OPEN, "/no/such/file", 0, 0)
		c.Call(unix.SYS_EXIT_GROUP, 7)
	})
	if err := i.Do(b); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Result(Ref(c.base + opResult)); !errors.Is(err, unix.ENOENT) {
		t.Errorf("the child's call: %v", err)
	}
	if e := <-exits; e.pid != b.Value(k) || e.status.ExitStatus() != 7 {
		t.Errorf("report %+v of child %d", e, b.Value(k))
	}
	if err := i.Close(); err != nil {
		t.Error(err)
	}
	if err := i.Do(NewBatch()); !errors.Is(err, ErrGone) {
		t.Errorf("after close: %v", err)
	}
	b = NewBatch()
	b.Try(unix.SYS_WAIT4, s.PID(), nil, unix.WALL, nil)
	if err := seed.Do(b); err != nil {
		t.Fatal(err)
	}
}

// Eight threads use one stub at once, as incarnations use one seed or zygote:
// each clones a child, which parks and is then seized by that thread alone.
func TestEightUsersOfOneStub(t *testing.T) {
	s := spawn(t)
	var wg sync.WaitGroup
	for user := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for round := range 25 {
				if err := cloneSeizeRun(s, user*1000+round); err != nil {
					t.Errorf("user %d, round %d: %v", user, round, err)
					return
				}
			}
		}()
	}
	wg.Wait()
	if err := s.Do(NewBatch()); err != nil { // it reaps before it serves
		t.Fatal(err)
	}
	if kids, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", s.PID(), s.PID())); err != nil || len(kids) != 0 {
		t.Errorf("children left: %q %v", kids, err)
	}
}

func cloneSeizeRun(s *Server, mark int) error {
	b := NewBatch()
	r, _ := b.Fork(CloneArgs{ExitSignal: uint64(unix.SIGCHLD)}, EndPark, func(*Batch) {})
	if err := s.Do(b); err != nil {
		return err
	}
	c, err := Seize(b.Value(r), OptionsRestore)
	if err != nil {
		return err
	}
	b = NewBatch()
	out := b.Output(8)
	b.Memcpy(uint64(out.Ptr), uint64(b.PutWords(uint64(mark))), 8)
	b.Clone3(CloneArgs{ExitSignal: uint64(unix.SIGCHLD)})
	if err := c.Run(b); err != nil {
		return err
	}
	if out.Bytes()[0] != byte(mark) || out.Bytes()[1] != byte(mark>>8) {
		return fmt.Errorf("mark %d came back as %v", mark, out.Bytes())
	}
	born, err := c.Born()
	if err != nil || len(born) != 1 {
		return fmt.Errorf("born %d: %w", len(born), err)
	}
	g := NewBatch()
	ppid := g.Call(unix.SYS_GETPPID)
	if err := born[0].Run(g); err != nil {
		return err
	}
	if g.Value(ppid) != c.TID {
		return fmt.Errorf("grandchild's parent is %d, not %d", g.Value(ppid), c.TID)
	}
	for _, x := range []*Tracee{born[0], c} {
		reap(x.TID)
	}
	return nil
}

func TestBatchTooLarge(t *testing.T) {
	s := spawn(t)
	b := NewBatch()
	b.Put(make([]byte, dataEnd-dataAddr+1))
	if err := s.Do(b); err == nil {
		t.Error("data beyond the area was accepted")
	}
	b = NewBatch()
	for range (childAddr-opsAddr)/opSize + 1 {
		b.Call(unix.SYS_GETPID)
	}
	if err := s.Do(b); err == nil {
		t.Error("operations beyond the area were accepted")
	}
	if err := s.Do(NewBatch()); err != nil {
		t.Errorf("the stub serves no more: %v", err)
	}
}

func BenchmarkBatch(b *testing.B) {
	p, err := NewProgram()
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	s, err := p.Spawn()
	if err != nil {
		b.Fatal(err)
	}
	defer s.Kill()
	for _, n := range []int{1, 20, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			batch := NewBatch()
			for range n {
				batch.Call(unix.SYS_GETPPID)
			}
			for b.Loop() {
				if err := s.Do(batch); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
