package tracee

import (
	"encoding/binary"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/ptrace"
)

// Options of Seize.
const (
	// OptionsLive are for a running program: it must survive our end.
	OptionsLive = ptrace.OptSuspendSeccomp
	// OptionsRestore are for a process that is being restored: threads and
	// children that it clones are traced too, and all end if we do.
	OptionsRestore = ptrace.OptSuspendSeccomp | ptrace.OptExitKill |
		unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK
)

// Tracee is a thread stopped by ptrace. Its methods belong to the OS thread
// that seized it.
type Tracee struct {
	// TID is the thread's number as this process sees it.
	TID int
	// Base are the registers at the first stop. Batches start from them.
	Base Registers

	// Traps are the siginfo_t of signals that came while it ran for us though none but
	// SIGTRAP gets through: traps that somebody had sent it, and signals for something
	// that the thread itself has done (a fault, SIGSYS) and that were pending. The kernel
	// gives a thread those first when another of their kind gets through, blocked or
	// not, and our trap is one (dequeue_synchronous_signal in kernel/signal.c). SIGSTOP,
	// which nobody can block, comes too, in a thread that was running. The
	// thread has not got them: whoever lets it go must deliver them.
	Traps [][ptrace.SiginfoSize]byte

	live bool   // see Stopped
	loop uint64 // where the batch loop is in its memory
	born []int  // what the last batch cloned, in order
}

// Seize attaches to a parked stub and stops it.
func Seize(tid int, options uintptr) (*Tracee, error) {
	t := &Tracee{TID: tid, loop: stubAt(stubBatch)}
	if err := ptrace.Seize(tid, options); err != nil {
		return nil, fmt.Errorf("seize thread %d: %w", tid, err)
	}
	if err := ptrace.Interrupt(tid); err != nil {
		return nil, fmt.Errorf("interrupt thread %d: %w", tid, err)
	}
	return t, t.firstStop()
}

// Stopped takes over a thread that this OS thread has seized and that stands,
// with the registers it stopped with. It has no batch loop yet: see
// [Tracee.UseLoop].
func Stopped(tid int, regs Registers) *Tracee { return &Tracee{TID: tid, Base: regs, live: true} }

// firstStop waits for a stop and reads the registers.
func (t *Tracee) firstStop() error {
	st, err := ptrace.Wait(t.TID)
	if err != nil {
		return fmt.Errorf("wait for thread %d: %w", t.TID, err)
	}
	if !st.Stopped() {
		return fmt.Errorf("thread %d ended with status %#x", t.TID, uint32(st))
	}
	return ptrace.GetRegs(t.TID, &t.Base.PtraceRegs)
}

// UseLoop tells where in the target's memory a copy of [LoopCode] stands.
func (t *Tracee) UseLoop(addr uint64) { t.loop = addr + stubBatch }

// LoopCode is code that holds the batch loop and runs at any address.
func LoopCode() []byte { return stubCode }

// Run runs the batch and leaves the target stopped. Children that it cloned
// stand in their first stop; see [Tracee.Born].
func (t *Tracee) Run(b *Batch) error {
	if err := t.Begin(b); err != nil {
		return err
	}
	return t.Finish(b)
}

// Begin starts a batch, which [Tracee.Finish] waits for; batches of several
// tracees run beside each other so, each in an area of its own.
func (t *Tracee) Begin(b *Batch) error {
	if err := b.load(t.TID); err != nil {
		return err
	}
	t.born = t.born[:0]
	r := t.Base
	r.toBatch(t.loop, b)
	if err := ptrace.SetRegs(t.TID, &r.PtraceRegs); err != nil {
		return fmt.Errorf("set registers of thread %d: %w", t.TID, err)
	}
	if err := ptrace.Continue(t.TID, 0); err != nil {
		return fmt.Errorf("continue thread %d: %w", t.TID, err)
	}
	return nil
}

// RunSignalled is Run for a batch that sends its own process signals, which it
// gets; stopped reports whether it came to stand by job control. It runs on to
// the end of the batch then, and stands when it is let go.
func (t *Tracee) RunSignalled(b *Batch) (stopped bool, err error) {
	if err := t.Begin(b); err != nil {
		return false, err
	}
	for {
		st, err := ptrace.Wait(t.TID)
		if err != nil {
			return false, fmt.Errorf("wait for thread %d: %w", t.TID, err)
		}
		if !st.Stopped() {
			return false, fmt.Errorf("thread %d ended in a batch with status %#x", t.TID, uint32(st))
		}
		sig := 0
		switch {
		case st.Event() == unix.PTRACE_EVENT_STOP:
			stopped = stopped || st.Signal() != int(unix.SIGTRAP)
		case st.Event() == 0 && st.Signal() == int(unix.SIGTRAP):
			if ours, err := t.setAside(st.Signal()); err != nil {
				return stopped, err
			} else if ours {
				return stopped, b.collect(t.TID)
			}
		case st.Event() == 0:
			sig = st.Signal()
		}
		if err := ptrace.Continue(t.TID, sig); err != nil {
			return false, fmt.Errorf("continue thread %d: %w", t.TID, err)
		}
	}
}

// Finish waits for the end of a batch and collects its results.
func (t *Tracee) Finish(b *Batch) error {
	for {
		st, err := ptrace.Wait(t.TID)
		if err != nil {
			return fmt.Errorf("wait for thread %d: %w", t.TID, err)
		}
		switch ev := st.Event(); {
		case !st.Stopped():
			return fmt.Errorf("thread %d ended in a batch with status %#x", t.TID, uint32(st))
		case ev == unix.PTRACE_EVENT_CLONE || ev == unix.PTRACE_EVENT_FORK || ev == unix.PTRACE_EVENT_VFORK:
			tid, err := ptrace.EventMessage(t.TID)
			if err != nil {
				return fmt.Errorf("new thread of %d: %w", t.TID, err)
			}
			t.born = append(t.born, tid)
		case ev == unix.PTRACE_EVENT_STOP: // of a process stopped by job control; it goes on all the same
		case ev == 0:
			if ours, err := t.setAside(st.Signal()); err != nil {
				return fmt.Errorf("in a batch: %w", err)
			} else if ours {
				return b.collect(t.TID)
			}
		}
		if err := ptrace.Continue(t.TID, 0); err != nil {
			return fmt.Errorf("continue thread %d: %w", t.TID, err)
		}
	}
}

// setAside tells the trap of a breakpoint or step, which the kernel raises (siginfo's
// si_code is above 0, see sigaction(2)), from signals that were pending, and keeps
// those in Traps.
func (t *Tracee) setAside(sig int) (ours bool, err error) {
	si, err := ptrace.PendingSignal(t.TID)
	if err != nil {
		return false, fmt.Errorf("signal of thread %d: %w", t.TID, err)
	}
	raised := int32(binary.LittleEndian.Uint32(si[8:])) > 0
	if sig == int(unix.SIGTRAP) {
		if raised {
			return true, nil
		}
	} else if sig == int(unix.SIGSTOP) && t.live {
		// One for the thread and one for its process at most.
	} else if !raised || slices.ContainsFunc(t.Traps, func(o [ptrace.SiginfoSize]byte) bool { return o[0] == si[0] }) {
		// One of each is pending at most: this is about what runs here.
		return false, fmt.Errorf("thread %d got signal %d", t.TID, sig)
	}
	t.Traps = append(t.Traps, si)
	return false, nil
}

// Stops reports whether a SIGSTOP came while the thread ran for us.
func (t *Tracee) Stops() bool {
	return slices.ContainsFunc(t.Traps, func(si [ptrace.SiginfoSize]byte) bool {
		return unix.Signal(binary.LittleEndian.Uint32(si[:])) == unix.SIGSTOP
	})
}

// Born adopts the threads and children that the last batch cloned, in the
// order in which it did, each in its first stop.
func (t *Tracee) Born() ([]*Tracee, error) {
	out := make([]*Tracee, 0, len(t.born))
	for _, tid := range t.born {
		c := &Tracee{TID: tid, loop: t.loop}
		if err := c.firstStop(); err != nil {
			return out, err
		}
		out = append(out, c)
	}
	return out, nil
}

// Cloned are the numbers of the threads and children that the last batch
// cloned, which are traced, also if it has failed.
func (t *Tracee) Cloned() []int { return t.born }

// Syscall runs one system call at a syscall instruction of the target's own,
// by a single step, so that it needs no loop in the target's memory.
func (t *Tracee) Syscall(at uint64, nr int, args ...uint64) (int64, error) {
	r := t.Base
	r.toCall(at, nr, args)
	if err := ptrace.SetRegs(t.TID, &r.PtraceRegs); err != nil {
		return 0, fmt.Errorf("set registers of thread %d: %w", t.TID, err)
	}
	for {
		if err := ptrace.SingleStep(t.TID); err != nil {
			return 0, fmt.Errorf("step thread %d: %w", t.TID, err)
		}
		st, err := ptrace.Wait(t.TID)
		if err != nil || !st.Stopped() {
			return 0, fmt.Errorf("wait for thread %d: status %#x: %w", t.TID, uint32(st), err)
		}
		// A process that job control has stopped stands once more before it
		// steps.
		if st.Event() == unix.PTRACE_EVENT_STOP {
			continue
		}
		// One that was pending comes before the step.
		if ours, err := t.setAside(st.Signal()); err != nil {
			return 0, fmt.Errorf("in a step: %w", err)
		} else if ours {
			break
		}
	}
	if err := ptrace.GetRegs(t.TID, &r.PtraceRegs); err != nil {
		return 0, fmt.Errorf("registers of thread %d: %w", t.TID, err)
	}
	v := r.result()
	if v < 0 && v >= -4095 {
		return v, &CallError{Name: callName(nr), Args: fmt.Sprintf("%#x", args), Errno: unix.Errno(-v)}
	}
	return v, nil
}

// SetRegisters sets the registers with which the thread goes on.
func (t *Tracee) SetRegisters(r Registers) error {
	if err := ptrace.SetRegs(t.TID, &r.PtraceRegs); err != nil {
		return fmt.Errorf("set registers of thread %d: %w", t.TID, err)
	}
	return nil
}

// Detach lets the thread go.
func (t *Tracee) Detach() error {
	if err := ptrace.Detach(t.TID, 0); err != nil {
		return fmt.Errorf("detach thread %d: %w", t.TID, err)
	}
	return nil
}
