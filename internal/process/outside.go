package process

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/ptrace"
	"github.com/sandtree/sandtree/internal/process/image"
)

const (
	xstateMax = 16 << 10 // AVX-512 and tile data fit
	peeked    = 256      // pending signals that are read at once
	// maxPending is how many signals may be queued for one thread or process. The
	// kernel counts to each from the first: 4,000 take it 0.03 s, 16,000 more than a second.
	maxPending = 4096
)

// readThread reads what ptrace tells of a stopped thread.
func (l *Live) readThread(t *liveThread) error {
	m := &image.Thread{TID: t.tid, Regs: t.regs.PtraceRegs}
	t.image = m
	n, err := ptrace.GetXState(t.host, t.xstate)
	if err != nil {
		return threadError(t, "extended state", err)
	}
	m.XState = append([]byte(nil), t.xstate[:n]...)
	m.Sigmask = t.mask
	d := t.dispatch
	m.Modes.Dispatch = [4]uint64{d.Mode, d.Selector, d.Offset, d.Length}
	if m.RobustList[0], m.RobustList[1], err = ptrace.RobustList(t.host); err != nil {
		return threadError(t, "robust list", err)
	}
	rs, err := ptrace.GetRseq(t.host)
	if err != nil {
		return threadError(t, "restartable sequences", err)
	}
	t.abortSequence(rs.Pointer)
	m.Regs = t.regs.PtraceRegs
	if _, in := t.regs.InSyscall(); in {
		setCall(&m.Regs, t.trueCall(&t.regs))
	}
	m.Rseq = image.Rseq{Pointer: rs.Pointer, Size: rs.Size, Signature: rs.Signature}
	if m.Pending, err = l.pending(t, false); err != nil {
		return err
	}
	if t.deliver != 0 && t.deliver != int(unix.SIGSTOP) { // it was about to be delivered: in the copy it is pending still
		m.Pending = append([][128]byte{t.pending}, m.Pending...)
	}
	keepSched(&m.Sched, &t.boost.was)
	if !l.cfg.Realtime {
		if err := readSched(t.host, m); err != nil {
			return threadError(t, "scheduling", err)
		}
	}
	if m.Sched.IOPriority, err = ioPriority(t.host); err != nil {
		return threadError(t, "I/O priority", err)
	}
	m.Sched.Affinity = t.affinity
	for i := l.cfg.Filters; ptrace.HasSeccompFilter(t.host, i); i++ { // confinement's come first
		f, err := ptrace.SeccompFilter(t.host, i)
		if err != nil {
			return threadError(t, "seccomp filter", err)
		}
		m.Filters = append(m.Filters, f)
	}
	return nil
}

// blocked reports whether a signal waits for its mask.
func blocked(mask uint64, si [128]byte) bool {
	sig := binary.LittleEndian.Uint32(si[:])
	return sig >= 1 && sig <= 64 && mask>>(sig-1)&1 != 0
}

// pending reads the signals that wait for a thread, or for its whole process.
func (l *Live) pending(t *liveThread, shared bool) ([][128]byte, error) {
	var out [][128]byte
	for {
		n, err := ptrace.PeekPending(t.host, shared, len(out), l.signals[:])
		if err != nil {
			return nil, threadError(t, "pending signals", err)
		}
		if n == 0 {
			return out, nil
		}
		many := len(out) == 0 && n == peeked
		out = append(out, l.signals[:n]...)
		if !many {
			continue
		}
		if n, err = ptrace.PeekPending(t.host, shared, maxPending, l.signals[:1]); err != nil {
			return nil, threadError(t, "pending signals", err)
		}
		if n > 0 {
			return nil, fault.New(fault.Uncapturable, "%s has more than %d signals queued", describe(t.process), maxPending).
				WithHint("let it receive them, then try again")
		}
	}
}

func threadError(t *liveThread, what string, err error) error {
	return fmt.Errorf("read %s of thread %d of process %d: %w", what, t.tid, t.process.pid, err)
}

// describe names a process to the user.
func describe(p *liveProcess) string {
	return fmt.Sprintf("process %d (%s)", p.pid, p.stat.comm)
}

// readProcesses reads what can be seen of all processes from outside: what ptrace
// tells here, since it belongs to this thread, and what stands in files of /proc on another
// one beside that, and here, too, when the former is done.
func (l *Live) readProcesses() error {
	for _, p := range l.order {
		if err := l.readState(p); err != nil {
			return err
		}
	}
	var next atomic.Int32
	files := func() error {
		buf := make([]byte, maxAuxv)
		for {
			i := int(next.Add(1)) - 1
			if i >= len(l.order) {
				return nil
			}
			if err := l.order[i].readFiles(buf); err != nil {
				return err
			}
		}
	}
	outcome := l.cfg.Beside(files)
	err := l.readLimits()
	for _, p := range l.order {
		if err != nil {
			break
		}
		err = l.readProcess(p)
	}
	if err == nil {
		err = files()
	}
	if e := outcome(); err == nil {
		err = e
	}
	return err
}

// readState reads how a process stands, and begins its image.
func (l *Live) readState(p *liveProcess) error {
	var err error
	was := p.stat.mm
	if p.stat, err = l.readStat(p.pid); err != nil {
		return err
	}
	if p.leaderEnded() { // it has no memory
		other, err := l.readStat(p.threads[0].tid)
		if err != nil {
			return err
		}
		p.stat.mm = other.mm
	}
	was.Brk = p.stat.mm.Brk // which it moves
	if p.met != l.round && (!p.apart || was != p.stat.mm) {
		if err := p.memory.Reopen(); err != nil {
			return err
		}
	}
	p.image = &image.Process{
		PID: p.pid, Parent: p.stat.parent, Group: p.stat.group, Session: p.stat.session,
		State: image.Running, Comm: p.stat.comm, ExitSignal: p.stat.exitSignal, Terminal: -1,
	}
	return nil
}

// readProcess reads what is told of a process by its number.
func (l *Live) readProcess(p *liveProcess) error {
	m := p.image
	if sig := p.threads[0].jobStop; sig != 0 {
		m.State, m.StopSignal = image.Stopped, sig
	}
	for _, t := range p.threads {
		if t.deliver == int(unix.SIGSTOP) || t.tracee.Stops() { // nobody could queue it for itself and go on
			m.State, m.StopSignal = image.Stopped, int(unix.SIGSTOP)
		}
	}
	if p.leaderEnded() {
		m.Threads = append(m.Threads, endedLeader(p))
	}
	for _, t := range p.threads {
		if err := l.readThread(t); err != nil {
			return err
		}
		m.Threads = append(m.Threads, t.image)
	}
	var err error
	if m.Pending, err = l.pending(p.threads[0], true); err != nil {
		return err
	}
	takeStops(m)
	return nil
}

// takeStops makes a process that has a SIGSTOP pending one that is stopped. Nobody can
// block it, so it is only that the process has not got to run yet; a restore could not
// give it one without standing over it.
func takeStops(m *image.Process) {
	is := func(si [ptrace.SiginfoSize]byte) bool {
		return unix.Signal(binary.LittleEndian.Uint32(si[:])) == unix.SIGSTOP
	}
	take := func(pending [][ptrace.SiginfoSize]byte) [][ptrace.SiginfoSize]byte {
		if slices.ContainsFunc(pending, is) {
			m.State, m.StopSignal = image.Stopped, int(unix.SIGSTOP)
		}
		return slices.DeleteFunc(pending, is)
	}
	m.Pending = take(m.Pending)
	for _, t := range m.Threads {
		t.Pending = take(t.Pending)
	}
}
