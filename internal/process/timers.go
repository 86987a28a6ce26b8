package process

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// Values of sigev_notify (sigevent(7)).
const (
	sigevSignal   = 0
	sigevNone     = 1
	sigevThreadID = 4
)

// CLOCK_PROCESS_CPUTIME_ID and CLOCK_THREAD_CPUTIME_ID as the kernel keeps them
// (PROCESS_CLOCK and THREAD_CLOCK of kernel/time/posix-cpu-timers.c).
const (
	cpuClockOfProcess = -6
	cpuClockOfThread  = -2
)

// listTimers finds the POSIX timers of a process, and refuses those that no
// restore could make again.
func (l *Live) listTimers(p *liveProcess) error {
	p.image.POSIXTimers = nil
	fd, err := unix.Openat(l.cfg.Proc, strconv.Itoa(p.pid)+"/timers", unix.O_RDONLY|unix.O_CLOEXEC, 0) // in numbers inside
	if err == unix.ENOENT {                                                                            // a kernel without them
		return nil
	}
	if err != nil {
		return fmt.Errorf("timers of process %d: %w", p.pid, err)
	}
	defer unix.Close(fd)
	var text []byte
	for {
		n, err := unix.Read(fd, l.buf)
		if err != nil {
			return fmt.Errorf("timers of process %d: %w", p.pid, err)
		}
		if n == 0 {
			break
		}
		text = append(text, l.buf[:n]...)
	}
	if len(text) == 0 {
		return nil
	}
	timers, err := parseTimers(text)
	if err != nil {
		return fmt.Errorf("timers of process %d: %w", p.pid, err)
	}
	if len(timers) > maxTimers {
		return fault.New(fault.Uncapturable, "%s has %d POSIX timers, more than a checkpoint can keep (%d)", describe(p), len(timers), maxTimers).
			WithHint("have it delete some, then try again")
	}
	for i := range timers {
		t := &timers[i]
		switch {
		case t.Clock == unix.CLOCK_THREAD_CPUTIME_ID && t.Notify != sigevThreadID && len(p.threads) > 1:
			return fault.New(fault.Uncapturable, "%s has a POSIX timer (%d) of the processor time of one of its threads, and the kernel does not tell which", describe(p), t.ID).
				WithHint("have it delete the timer, or have the signal sent to the thread (SIGEV_THREAD_ID)")
		case (t.Clock < 0 || t.Clock > unix.CLOCK_TAI) && !p.ownClock(t.Clock):
			return fault.New(fault.Uncapturable, "%s has a POSIX timer (%d) of another process's or device's clock (%d)", describe(p), t.ID, t.Clock).
				WithHint("have it delete the timer, then try again")
		}
	}
	p.image.POSIXTimers = timers
	return nil
}

// ownClock reports whether a clock is that of the processor time of a process itself, or of one of its
// threads, by number (pthread_getcpuclockid(3); CPUCLOCK_PID and the like of
// include/linux/posix-timers_types.h in the kernel). The number is the same after a restore.
func (p *liveProcess) ownClock(clock int) bool {
	const kind, ofThread, device = 3, 4, 3
	if clock >= 0 || clock&kind == device {
		return false
	}
	number := ^(clock >> 3)
	if clock&ofThread == 0 {
		return number == p.pid || number == 0 // itself
	}
	return slices.ContainsFunc(p.threads, func(t *liveThread) bool { return t.tid == number })
}

// maxTimers is how many POSIX timers of one process are kept: as many as can be
// asked in one batch.
const maxTimers = 1000

// parseTimers parses the text of /proc/PID/timers (proc_pid_timers(5)).
func parseTimers(text []byte) (out []image.POSIXTimer, err error) {
	for line := range bytes.Lines(text) {
		name, value, ok := strings.Cut(strings.TrimSpace(string(line)), ":")
		value = strings.TrimSpace(value)
		if ok && name == "ID" {
			out = append(out, image.POSIXTimer{})
		}
		if !ok || len(out) == 0 {
			return nil, fmt.Errorf("line %q is not understood", line)
		}
		t := &out[len(out)-1]
		switch name {
		case "ID":
			t.ID, err = strconv.Atoi(value)
		case "signal":
			sig, v, _ := strings.Cut(value, "/")
			if t.Signal, err = strconv.Atoi(sig); err == nil {
				t.Value, err = strconv.ParseUint(v, 16, 64)
			}
		case "notify":
			err = parseNotify(t, value)
		case "ClockID":
			if t.Clock, err = strconv.Atoi(value); err == nil {
				// The kernel shows those of processor time as it keeps them.
				switch t.Clock {
				case cpuClockOfProcess:
					t.Clock = unix.CLOCK_PROCESS_CPUTIME_ID
				case cpuClockOfThread:
					t.Clock = unix.CLOCK_THREAD_CPUTIME_ID
				}
			}
		}
		if err != nil {
			return nil, fmt.Errorf("line %q: %w", line, err)
		}
	}
	slices.SortFunc(out, func(a, b image.POSIXTimer) int { return a.ID - b.ID })
	return out, nil
}

// parseNotify parses the like of "signal/tid.17".
func parseNotify(t *image.POSIXTimer, s string) error {
	how, rest, _ := strings.Cut(s, "/")
	whom, number, _ := strings.Cut(rest, ".")
	switch {
	case how == "signal" && whom == "tid":
		t.Notify = sigevThreadID
		var err error
		t.TID, err = strconv.Atoi(number)
		return err
	case how == "signal" || how == "thread": // the latter is for the C library to do
		t.Notify = sigevSignal
	case how == "none":
		t.Notify = sigevNone
	default:
		return fault.New(fault.Internal, "unknown notification %q", s)
	}
	return nil
}

// askTimers has a process say when its POSIX timers expire.
func (l *Live) askTimers(p *liveProcess) error {
	timers := p.image.POSIXTimers
	if len(timers) == 0 {
		return nil
	}
	b := tracee.NewBatchIn(areaOf(insideFDs, insideOps, insideEnd))
	left := b.Output(itimerSize * len(timers))
	for i, t := range timers {
		b.Call(unix.SYS_TIMER_GETTIME, t.ID, left.Ptr+tracee.Ptr(itimerSize*i))
	}
	if err := p.threads[0].tracee.Run(b); err != nil {
		return l.injectError(p, err)
	}
	for i := range timers {
		v := left.Bytes()[itimerSize*i:]
		ns := func(at int) int64 { return int64(u64(v, at))*1e9 + int64(u64(v, at+1)) }
		var err error
		if timers[i].Timer, err = clocksOf(&l.cfg).Timer(timers[i].Clock, false, ns(2), ns(0)); err != nil {
			return err
		}
	}
	return nil
}

// maxUnused is how many timers may be made and deleted to reach a number, on
// kernels that give no number that is asked for.
const maxUnused = 200_000

// makeTimers makes the POSIX timers of a process, by id.
func (r *restore) makeTimers(n *newProcess) error {
	timers := n.image.POSIXTimers
	if len(timers) == 0 {
		return nil
	}
	choose, err := n.chooseTimerIDs(true)
	if err != nil {
		return err
	}
	next := 0
	for i := range timers {
		t := &timers[i]
		maker := n.timerMaker(t)
		for !choose && next < t.ID {
			if t.ID > maxUnused {
				return fault.New(fault.Unsupported, "timer %d: kernels before Linux 6.15 can only count up to it", t.ID)
			}
			b := tracee.NewBatch()
			id := b.PutWords(0)
			for ; next < t.ID && !b.Full(4, 0); next++ {
				b.Call(unix.SYS_TIMER_CREATE, unix.CLOCK_MONOTONIC, b.Put(sigevent(&image.POSIXTimer{Notify: sigevNone})), id)
				b.Call(unix.SYS_TIMER_DELETE, tracee.Ref(id))
			}
			if err := maker.Run(b); err != nil {
				return fmt.Errorf("POSIX timer %d: %w", t.ID, err)
			}
		}
		if err := r.makeTimer(maker, t); err != nil {
			return fmt.Errorf("POSIX timer %d: %w", t.ID, err)
		}
		next = t.ID + 1
	}
	if choose {
		_, err = n.chooseTimerIDs(false)
	}
	return err
}

// chooseTimerIDs has timer_create(2) take the number that it is given
// (PR_TIMER_CREATE_RESTORE_IDS, Linux 6.15), or not any more. ok is false where
// the kernel does not know that.
func (n *newProcess) chooseTimerIDs(on bool) (ok bool, err error) {
	b := tracee.NewBatch()
	v := b.Try(unix.SYS_PRCTL, unix.PR_TIMER_CREATE_RESTORE_IDS, on, 0, 0, 0)
	if err := n.tracee.Run(b); err != nil {
		return false, err
	}
	return b.Value(v) == 0, nil
}

// timerMaker is the thread that has to make a timer: a clock of processor time
// is that of its maker.
func (n *newProcess) timerMaker(t *image.POSIXTimer) *tracee.Tracee {
	if t.Clock == unix.CLOCK_THREAD_CPUTIME_ID {
		for i, m := range n.image.Threads {
			if m.TID == t.TID {
				return n.threads[i]
			}
		}
	}
	return n.threads[0]
}

func (r *restore) makeTimer(maker *tracee.Tracee, t *image.POSIXTimer) error {
	due, _, err := clocksOf(&r.target.Live).Due(t.Timer, false)
	if err != nil {
		return err
	}
	b := tracee.NewBatch()
	id := b.PutWords(uint64(t.ID))
	b.Call(unix.SYS_TIMER_CREATE, t.Clock, b.Put(sigevent(t)), id)
	if due > 0 || t.Interval > 0 {
		v := b.PutWords(uint64(t.Interval/1e9), uint64(t.Interval%1e9), uint64(due/1e9), uint64(due%1e9))
		b.Call(unix.SYS_TIMER_SETTIME, t.ID, 0, v, nil)
	}
	return maker.Run(b)
}

// sigevent is struct sigevent of the kernel: value, signal, how, thread.
func sigevent(t *image.POSIXTimer) []byte {
	b := binary.LittleEndian.AppendUint64(make([]byte, 0, 64), t.Value)
	b = binary.LittleEndian.AppendUint32(b, uint32(t.Signal))
	b = binary.LittleEndian.AppendUint32(b, uint32(t.Notify))
	b = binary.LittleEndian.AppendUint32(b, uint32(t.TID))
	return b[:64]
}
