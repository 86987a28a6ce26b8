package child

import (
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// Spec says what to start and with which rights.
type Spec struct {
	// Path is the program, Args its arguments with its name first.
	Path string
	Args []string
	Env  []string
	// Files become descriptors 3, 4, and so on. Standard input is empty,
	// output and error are the host's error output. The files stay the
	// caller's.
	Files []*os.File
	// Unprivileged takes all capabilities and supplementary groups away, for
	// good, and gives the child the user and group ID.
	Unprivileged bool
	ID           uint32
	// Confined, if not nil, bounds what it may do as root.
	Confined *Confinement
	// CgroupFD, if positive, is the v2 cgroup to start the child in
	// (CLONE_INTO_CGROUP, Linux 5.7).
	CgroupFD int
}

// Child is a process that was started here.
type Child struct {
	pid    int
	reaper *Reaper
	done   chan struct{}
	status syscall.WaitStatus // valid once done is closed
}

// PID is the child's process id.
func (c *Child) PID() int { return c.pid }

// Done is closed when the child has ended and was reaped.
func (c *Child) Done() <-chan struct{} { return c.done }

// Reason says in words how the child ended. It waits for that.
func (c *Child) Reason() string {
	<-c.done
	if c.status.Signaled() {
		s := fmt.Sprintf("killed by %s", unix.SignalName(c.status.Signal()))
		if c.status.CoreDump() {
			s += " (core dumped)"
		}
		return s
	}
	return fmt.Sprintf("exited with status %d", c.status.ExitStatus())
}

// Signal sends a signal, unless the child has ended.
func (c *Child) Signal(sig syscall.Signal) {
	// Under the lock the child cannot be reaped, so the number is still its.
	c.reaper.mu.Lock()
	defer c.reaper.mu.Unlock()
	if _, ok := c.reaper.children[c.pid]; ok {
		_ = syscall.Kill(c.pid, sig) // a zombie may be signalled, too
	}
}

// Start starts a child.
func (r *Reaper) Start(s Spec) (*Child, error) {
	type result struct {
		c   *Child
		err error
	}
	started := make(chan result)
	go func() {
		// Never unlocked: the thread, which has lost privileges, ends with
		// this goroutine.
		runtime.LockOSThread()
		c, err := r.start(s)
		started <- result{c, err}
		if err == nil {
			<-c.done
		}
	}()
	res := <-started
	return res.c, res.err
}

func (r *Reaper) start(s Spec) (*Child, error) {
	attr := &syscall.ProcAttr{
		Env: s.Env,
		Dir: "/",
		Sys: &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL},
	}
	if s.CgroupFD > 0 {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, s.CgroupFD
	}
	if s.Unprivileged {
		if err := renounce(); err != nil {
			return nil, fault.New(fault.Internal, "start %s: give up privileges: %w", s.Args[0], err)
		}
		attr.Sys.Credential = &syscall.Credential{Uid: s.ID, Gid: s.ID, Groups: []uint32{}}
	}
	if s.Confined != nil {
		if err := s.Confined.apply(s.Path); err != nil {
			return nil, fault.New(fault.Internal, "start %s: confine it: %w", s.Args[0], err)
		}
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, fault.New(fault.Internal, "start %s: %w", s.Args[0], err)
	}
	defer null.Close()
	attr.Files = []uintptr{null.Fd(), 2, 2}
	for _, f := range s.Files {
		attr.Files = append(attr.Files, f.Fd())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := syscall.ForkExec(s.Path, s.Args, attr)
	runtime.KeepAlive(s.Files)
	if err != nil {
		e := fault.New(fault.Internal, "start %s: %w", s.Args[0], err)
		if err == syscall.EACCES && s.Unprivileged {
			e = e.WithHint("user id %d must be able to execute the program: chmod a+rx the sandtree binary", s.ID)
		}
		return nil, e
	}
	if s.Unprivileged || s.Confined != nil {
		// A core would show what passes through it. Failing is no harm.
		_ = unix.Prlimit(pid, unix.RLIMIT_CORE, &unix.Rlimit{}, nil)
	}
	c := &Child{pid: pid, reaper: r, done: make(chan struct{})}
	r.children[pid] = c
	return c, nil
}

// renounce makes the calling thread, and what it starts, unable to gain
// privileges. What it has goes with the change of user.
func renounce() error { return boundTo(nil) }

// boundTo is renounce, and keeps some capabilities for what root starts.
func boundTo(keep map[uintptr]bool) error {
	// A kernel without a capability refuses its number with EINVAL: the end.
	for c := uintptr(0); ; c++ {
		if keep[c] {
			continue
		}
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if err == unix.EINVAL && c > 0 {
			break
		}
		if err != nil {
			return fmt.Errorf("drop capability %d from the bounding set: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("clear ambient capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	return nil
}
