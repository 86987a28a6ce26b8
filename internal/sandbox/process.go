package sandbox

import (
	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// Process is a child of PID 1 whose end is awaited.
type Process struct {
	pid    int
	done   chan struct{}
	status unix.WaitStatus
	lost   bool
}

// PID is the process's number inside.
func (p *Process) PID() int { return p.pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Status is how the process ended, once Done is closed. lost means that the
// whole incarnation ended first, which killed the process unseen.
func (p *Process) Status() (status unix.WaitStatus, lost bool) { return p.status, p.lost }

// ExitCode is the status as shells count it: 128 and the signal's number for a
// process that a signal ended.
func (p *Process) ExitCode() int {
	if p.status.Signaled() {
		return 128 + int(p.status.Signal())
	}
	return p.status.ExitStatus()
}

// Adopt awaits the end of a process that is a child of PID 1, though not by
// Exec: one that is being restored. It must be called before the process can
// end.
func (i *Incarnation) Adopt(pid int) (*Process, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.over {
		return nil, fault.New(fault.Unavailable, "adopt process %d: the sandbox's processes have ended", pid)
	}
	if pid <= 1 || i.processes[pid] != nil {
		return nil, fault.New(fault.Exists, "adopt process %d: it is awaited already", pid)
	}
	return i.await(pid), nil
}

// await enters a process in the table. The caller holds mu.
func (i *Incarnation) await(pid int) *Process {
	p := &Process{pid: pid, done: make(chan struct{})}
	i.processes[pid] = p
	return p
}

// started is the "pid" of a report that a batch of ours writes itself, with
// the pid of the process that it started as status. Reports keep their order,
// so the process is in the table before its end is reported, and no end
// reported before belongs to it, though the number may be the same.
const started = -2

// ended takes PID 1's reports.
func (i *Incarnation) ended(pid int, status unix.WaitStatus) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if pid == started {
		i.claims[int(status)] = i.await(int(status))
		return
	}
	p := i.processes[pid]
	if p == nil {
		return // an orphan that PID 1 inherited
	}
	delete(i.processes, pid)
	p.status = status
	close(p.done)
}

// watch ends the table with PID 1.
func (i *Incarnation) watch() {
	<-i.init.Done()
	i.mu.Lock()
	defer i.mu.Unlock()
	i.over = true
	for pid, p := range i.processes {
		delete(i.processes, pid)
		p.status, p.lost = unix.WaitStatus(unix.SIGKILL), true
		close(p.done)
	}
}
