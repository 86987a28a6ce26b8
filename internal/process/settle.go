package process

import (
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/ptrace"
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/process/memory"
	"github.com/sandtree/sandtree/internal/tracee"
)

// settle finishes the threads of a process: what only each can set for itself,
// its last confinement step, and then, from outside, registers and limits.
func (r *restore) settle(n *newProcess) error {
	p := n.image
	for i, m := range p.Threads {
		if err := r.settleThread(n, i, m); err != nil {
			return fmt.Errorf("thread %d: %w", m.TID, err)
		}
	}
	if err := r.makeTimers(n); err != nil {
		return err
	}
	at, err := memory.FindSyscall(n.tracee.TID, p.Memory.VMAs)
	if err != nil {
		return err
	}
	n.syscall = at
	// The stub leaves the memory, and last of all others inside may look into
	// it, if they might before.
	if _, err := n.tracee.Syscall(at, unix.SYS_MUNMAP, tracee.StubStart, tracee.StubEnd-tracee.StubStart); err != nil {
		return err
	}
	if err := mapBehind(n.tracee, at, memory.Behind(p.Memory.VMAs)); err != nil {
		return err
	}
	if p.Dumpable == 1 {
		if _, err := n.tracee.Syscall(at, unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 1); err != nil {
			return err
		}
	}
	r.lower(n)
	if err := r.target.Live.asRuler(func() error { return rule(n) }); err != nil {
		return err
	}
	path := fmt.Sprintf("/proc/%d/oom_score_adj", n.tracee.TID)
	if err := os.WriteFile(path, fmt.Append(nil, p.OOMScoreAdj), 0); err != nil {
		return fmt.Errorf("OOM score: %w", err)
	}
	return setCoreFilter(n.tracee.TID, p.CoreFilter)
}

// rule sets what is set from outside: registers, signal masks, priorities, processors
// and limits.
func rule(n *newProcess) error {
	for i, m := range n.image.Threads {
		tid := n.threads[i].TID
		if err := ptrace.SetXState(tid, m.XState); err != nil {
			return fmt.Errorf("extended state of thread %d: %w", m.TID, err)
		}
		if err := ptrace.SetSigmask(tid, m.Sigmask); err != nil {
			return fmt.Errorf("signal mask of thread %d: %w", m.TID, err)
		}
		if err := setIOPriority(tid, m.Sched.IOPriority); err != nil {
			return fmt.Errorf("I/O priority of thread %d: %w", m.TID, err)
		}
		if err := unix.SchedSetaffinity(tid, &m.Sched.Affinity); err != nil && err != unix.EINVAL { // no such processor here
			return fmt.Errorf("processors of thread %d: %w", m.TID, err)
		}
		setSlack(tid, &m.Sched)
		if err := setSched(tid, &m.Sched); err != nil {
			return fmt.Errorf("scheduling of thread %d: %w", m.TID, err)
		}
	}
	for res, l := range n.image.Limits {
		if err := setLimit(n.tracee.TID, res, l); err != nil {
			return err
		}
	}
	return nil
}

// defaultCoreFilter is that of new processes, but those of a kernel that was started with another one.
const defaultCoreFilter = 0x33

func setCoreFilter(pid int, filter *uint32) error {
	if filter == nil || *filter == defaultCoreFilter {
		return nil
	}
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/coredump_filter", pid), fmt.Appendf(nil, "%#x", *filter), 0); err != nil {
		return fmt.Errorf("what goes into a core file: %w", err)
	}
	return nil
}

func (r *restore) settleThread(n *newProcess, i int, m *image.Thread) error {
	p := n.image
	b := tracee.NewBatch()
	if !alikeThreads(p) {
		r.target.Walls.Assume(b, credentials(&m.Creds), 0)
	}
	b.Call(unix.SYS_SET_ROBUST_LIST, m.RobustList[0], m.RobustList[1])
	b.Call(unix.SYS_SET_TID_ADDRESS, m.ClearTID)
	b.Call(unix.SYS_SIGALTSTACK, m.AltStack[:], nil)
	b.Call(unix.SYS_PRCTL, unix.PR_SET_NAME, m.Name, 0, 0, 0)
	if m.Rseq.Pointer != 0 {
		b.Call(unix.SYS_RSEQ, m.Rseq.Pointer, m.Rseq.Size, 0, m.Rseq.Signature)
	}
	b, err := queueSignals(n.threads[i], b, m.Pending, func(b *tracee.Batch, sig uint32, si []byte) {
		b.Call(unix.SYS_RT_TGSIGQUEUEINFO, p.PID, m.TID, sig, si)
	})
	if err != nil {
		return err
	}
	if i == 0 {
		b, err = queueSignals(n.threads[i], b, p.Pending, func(b *tracee.Batch, sig uint32, si []byte) {
			b.Call(unix.SYS_RT_SIGQUEUEINFO, p.PID, sig, si)
		})
		if err != nil {
			return err
		}
		if p.WriteExec != 0 {
			const prSetMDWE = 65
			b.Call(unix.SYS_PRCTL, prSetMDWE, p.WriteExec, 0, 0, 0)
		}
		for w, t := range p.Timers {
			if t.Value != (unix.Timeval{}) {
				v := b.PutWords(uint64(t.Interval.Sec), uint64(t.Interval.Usec), uint64(t.Value.Sec), uint64(t.Value.Usec))
				b.Call(unix.SYS_SETITIMER, w, v, nil)
			}
		}
	}
	if b, err = queueFilters(n.threads[i], b, m.Filters[commonFilters(p):]); err != nil {
		return err
	}
	queueModes(b, &m.Modes)
	credentials(&m.Creds).Settle(b)
	if m.PDeathSig != 0 { // credentials that change clear it
		b.Call(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, m.PDeathSig, 0, 0, 0)
	}
	return n.threads[i].Run(b)
}

// queueSignals has a thread queue pending signals anew, in a batch that is begun, and
// returns the one to go on with. The kernel lets a process send siginfo of any kind
// to itself alone.
func queueSignals(t *tracee.Tracee, b *tracee.Batch, pending [][128]byte, queue func(*tracee.Batch, uint32, []byte)) (*tracee.Batch, error) {
	for _, si := range pending {
		if b.Full(8, 4096) {
			if err := t.Run(b); err != nil {
				return nil, err
			}
			b = tracee.NewBatch()
		}
		queue(b, binary.LittleEndian.Uint32(si[:]), si[:])
	}
	return b, nil
}

// zombies ends those that are to be waited for by their parents, the way that
// they had ended.
func (r *restore) zombies() error {
	return r.eachMade(func(n *newProcess) error {
		if n.image.State != image.Zombie {
			return nil
		}
		ws := unix.WaitStatus(n.image.ExitStatus)
		b := tracee.NewBatch()
		b.Call(unix.SYS_PRCTL, unix.PR_SET_NAME, n.image.Comm, 0, 0, 0)
		c := endedAs(n.image, r.target.Walls) // waitid(2) tells its user
		r.target.Walls.Assume(b, c, 0)
		c.Settle(b)
		if ws.Signaled() {
			b.Call(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, b.PutWords(0), nil, 8)
			b.Call(unix.SYS_KILL, n.image.PID, int(ws.Signal()))
		} else {
			b.Call(unix.SYS_EXIT_GROUP, ws.ExitStatus())
		}
		if err := n.tracee.Begin(b); err != nil {
			return err
		}
		for {
			st, err := ptrace.Wait(n.tracee.TID)
			if err != nil {
				return fmt.Errorf("end as a zombie: %w", err)
			}
			if !st.Stopped() {
				break
			}
			sig := 0
			if st.Event() == 0 {
				sig = st.Signal()
			}
			if err := ptrace.Continue(n.tracee.TID, sig); err != nil {
				return fmt.Errorf("end as a zombie: %w", err)
			}
		}
		// Its end raised a signal in the parent, which has had it long ago.
		if parent := r.procs[n.image.Parent]; parent != nil && n.image.ExitSignal > 0 {
			d := tracee.NewBatch()
			d.Try(unix.SYS_RT_SIGTIMEDWAIT, d.PutWords(1<<(n.image.ExitSignal-1)), nil, d.PutWords(0, 0), 8)
			if err := parent.tracee.Run(d); err != nil {
				return err
			}
		}
		delete(r.procs, n.image.PID)
		return nil
	})
}

// setLastPID has new processes get numbers above those that were given before
// the checkpoint. The host's file speaks of the namespace of who writes to it.
func (r *restore) setLastPID() error {
	fd, err := unix.Open("/proc/sys/kernel/ns_last_pid", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil // a kernel without it: numbers start lower
	}
	defer unix.Close(fd)
	b := tracee.NewBatch()
	last := b.ReceiveFD(tracee.ControlFD)
	text := fmt.Sprint(r.tree.LastPID)
	b.Try(unix.SYS_WRITE, last, text, len(text))
	b.Call(unix.SYS_CLOSE, last)
	if err := r.target.Init.Do(b, fd); err != nil {
		return fmt.Errorf("set the last process number: %w", err)
	}
	return nil
}
