package process

import "golang.org/x/sys/unix"

// pin keeps the thread that stops processes, and the processes while they
// stand, on one processor. They take turns in any case, and waking a thread on
// another processor costs several times as much as on the same one. A process is
// pinned when it stands, so that nothing that it clones inherits that.
type pin struct {
	mask unix.CPUSet // the one processor
	own  unix.CPUSet // the thread's own mask
	on   bool
}

// take pins the calling thread to the processor that it runs on: the scheduler
// has woken it on an idle one, if there was one.
func (p *pin) take() {
	if p.on || unix.SchedGetaffinity(0, &p.own) != nil {
		return
	}
	cpu, err := processor()
	if err != nil || p.own.Count() < 2 {
		return
	}
	p.mask.Zero()
	p.mask.Set(cpu)
	p.on = unix.SchedSetaffinity(0, &p.mask) == nil
}

// give takes that back.
func (p *pin) give() {
	if p.on {
		_ = unix.SchedSetaffinity(0, &p.own)
		p.on = false
	}
}

// hold pins another thread, which stands. A thread that may not run there stays
// as it is.
func (p *pin) hold(tid int) {
	if p.on {
		_ = unix.SchedSetaffinity(tid, &p.mask)
	}
}
