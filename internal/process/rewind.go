package process

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/procmem"
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// rewound is a call with a timeout that a stop has interrupted and that was
// entered anew. Its timeout began anew, too: stops that come more often than it
// lasts would keep it from ever passing.
type rewound struct {
	call    call
	since   time.Time // of the first rewind
	resumed time.Time // when it went on last
	passed  passed    // by then
}

// passed is what tells whether a thread has done more than wait: its voluntary
// context switches, and its processor time. 0 is not known.
type passed struct {
	switches int
	ran      time.Duration
}

// aRestart is more processor time than a thread takes from where it goes on to
// where it stands again in the same call, by far.
const aRestart = 300 * time.Microsecond

// more reports whether a thread has done more since then than wait in one call: that
// sleeps once, and stops once.
func (p passed) more(since passed) bool {
	return p.switches-since.switches > 2 || p.ran-since.ran > aRestart
}

// call is a system call with all that tells it from another one.
type call struct {
	nr     int
	ip, sp uint64
	args   [6]uint64
}

// resumeRegisters are those that a thread goes on with. A stop makes calls that
// are never restarted return EINTR, though no signal came: they are entered
// again, so that the stop is not felt. So are those that restart_syscall(2) would go on
// with, if a filter of the program's own does not let it. If a signal comes first, they return EINTR
// after all: the kernel sees to that.
func (l *Live) resumeRegisters(t *liveThread) tracee.Registers {
	r := t.regs
	nr, in := r.InSyscall()
	if in && r.Result() == restartNoHand && !t.stood.IsZero() {
		t.hasten(nr, &r)
	}
	again := in && r.Result() == -int64(unix.EINTR)
	if in && r.Result() == restartBlock && l.deniesRestart(t, &r) {
		if known := t.trueCall(&r); known >= 0 {
			nr, again = known, true
			setCall(&r.PtraceRegs, nr)
			if !t.stood.IsZero() {
				t.hasten(nr, &r)
			}
		}
	}
	if !again {
		t.rewound = rewound{}
		return r
	}
	c := callOf(nr, &r)
	timeout, result := t.timeout(&c)
	if timeout <= 0 {
		t.rewound = rewound{}
		r.Restart()
		return r
	}
	now := time.Now()
	// One that has gone on for longer than its timeout has returned by itself.
	if t.rewound.call != c || t.passed.more(t.rewound.passed) || t.stood.Sub(t.rewound.resumed) >= timeout {
		t.rewound = rewound{call: c, since: now}
	} else if now.Sub(t.rewound.since) >= timeout && !t.signalled() {
		t.rewound = rewound{}
		r.SetResult(result)
		return r
	}
	t.rewound.passed, t.rewound.resumed = passedOf(t.host), now
	r.Restart()
	return r
}

// noteWait notes what a thread has done that has just stopped and whose call was
// entered anew the last time.
func (t *liveThread) noteWait() {
	t.stood = time.Now()
	if t.rewound.call.ip != 0 {
		t.passed = passedOf(t.host)
	}
}

// signalled reports whether a signal is about to be delivered that is handled.
func (t *liveThread) signalled() bool {
	if t.deliver != 0 && !blocked(t.mask, t.pending) {
		return true
	}
	p := t.process.image
	if t.image == nil || p == nil {
		return false
	}
	return anyHandled(t.mask, &p.Handlers, t.image.Pending) || anyHandled(t.mask, &p.Handlers, p.Pending)
}

// anyHandled reports whether one of the signals does anything when it is
// delivered. A traced process keeps those that it ignores.
func anyHandled(mask uint64, handlers *[64]image.Handler, pending [][128]byte) bool {
	for _, si := range pending {
		sig := binary.LittleEndian.Uint32(si[:])
		if sig < 1 || sig > lastSignal || blocked(mask, si) {
			continue
		}
		const ignore = 1 // SIG_IGN
		switch action := handlers[sig-1].Action; {
		case action == ignore:
		case action == 0 && (sig == uint32(unix.SIGCHLD) || sig == uint32(unix.SIGCONT) || sig == uint32(unix.SIGURG) || sig == uint32(unix.SIGWINCH)):
		default:
			return true
		}
	}
	return false
}

// timeout is how long a call waits, and what it returns afterwards; 0 for
// calls without a timeout. These are all that a stop interrupts for good
// (signal(7)), and those that restart_syscall(2) goes on with.
func (t *liveThread) timeout(c *call) (d time.Duration, result int64) {
	const again = -int64(unix.EAGAIN)
	switch c.nr {
	case unix.SYS_EPOLL_WAIT, unix.SYS_EPOLL_PWAIT:
		return time.Duration(int32(c.args[3])) * time.Millisecond, 0
	case unix.SYS_EPOLL_PWAIT2:
		return t.timespec(c.args[3]), 0
	case unix.SYS_RT_SIGTIMEDWAIT:
		return t.timespec(c.args[2]), again
	case unix.SYS_NANOSLEEP, unix.SYS_CLOCK_NANOSLEEP:
		at, left, clock := c.sleep()
		if at == left || !passes(clock) {
			return 0, 0
		}
		return t.timespec(at), 0
	case unix.SYS_POLL:
		return time.Duration(int32(c.args[2])) * time.Millisecond, 0
	case unix.SYS_FUTEX:
		if c.args[1]&futexCommand != futexWait { // others have a time, which stays
			return 0, 0
		}
		return t.timespec(c.args[3]), -int64(unix.ETIMEDOUT)
	case unix.SYS_SEMTIMEDOP:
		return t.timespec(c.args[3]), again
	case unix.SYS_READ, unix.SYS_READV, unix.SYS_RECVFROM, unix.SYS_RECVMSG, unix.SYS_RECVMMSG, unix.SYS_ACCEPT, unix.SYS_ACCEPT4:
		return t.socketTimeout(int(c.args[0]), unix.SO_RCVTIMEO), again
	case unix.SYS_WRITE, unix.SYS_WRITEV, unix.SYS_SENDTO, unix.SYS_SENDMSG, unix.SYS_SENDMMSG, unix.SYS_CONNECT:
		return t.socketTimeout(int(c.args[0]), unix.SO_SNDTIMEO), again
	}
	return 0, 0
}

// sleep tells where a sleep has its time, where the kernel writes what remains of that, and
// its clock. Those of nanosleep(2) may be the same place, as the C library's sleep(3) has it:
// then it goes on with what remains by itself.
func (c *call) sleep() (at, left uint64, clock int) {
	if c.nr == unix.SYS_NANOSLEEP {
		return c.args[0], c.args[1], unix.CLOCK_MONOTONIC
	}
	return c.args[2], c.args[3], int(int32(c.args[0]))
}

// passes reports whether a clock goes on while a thread does nothing: one of processor time
// does not.
func passes(clock int) bool {
	return clock >= 0 && clock != unix.CLOCK_PROCESS_CPUTIME_ID && clock != unix.CLOCK_THREAD_CPUTIME_ID
}

// FUTEX_WAIT, and the bits of an operation without FUTEX_PRIVATE_FLAG and
// FUTEX_CLOCK_REALTIME (futex(2)).
const (
	futexWait    = 0
	futexCommand = 0x7f
)

// socketTimeout is a timeout of a socket (socket(7)); 0 if it has none, or if
// the descriptor is no socket.
func (t *liveThread) socketTimeout(number, option int) time.Duration {
	fd, err := unix.PidfdGetfd(t.process.table, number, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	tv, err := unix.GetsockoptTimeval(fd, unix.SOL_SOCKET, option)
	if err != nil {
		return 0
	}
	return time.Duration(tv.Nano())
}

// restartNoHand is the result of calls that the kernel enters again unless a signal
// is handled (ERESTARTNOHAND).
const restartNoHand = -514

// hasten takes the time that a thread stood from the timeout of a call which is
// entered again with what remained when it was interrupted (select(2)): the kernel has
// written that back.
func (t *liveThread) hasten(nr int, r *tracee.Registers) {
	c := callOf(nr, r)
	var at uint64
	unit := time.Nanosecond
	switch nr {
	case unix.SYS_SELECT:
		at, unit = c.args[4], time.Microsecond
	case unix.SYS_PSELECT6:
		at = c.args[4]
	case unix.SYS_PPOLL:
		at = c.args[2]
	case unix.SYS_NANOSLEEP, unix.SYS_CLOCK_NANOSLEEP:
		if from, left, clock := c.sleep(); from == left && passes(clock) {
			at = left
		}
	}
	var b [16]byte
	if at == 0 || procmem.Read(t.process.via, at, b[:]) != nil {
		return
	}
	s, part := int64(u64(b[:], 0)), int64(u64(b[:], 1))
	if s < 0 || s > int64(time.Duration(1<<62).Seconds()) || part < 0 || part > int64(time.Second/unit) {
		return
	}
	left := max(time.Duration(s)*time.Second+time.Duration(part)*unit-time.Since(t.stood), 0)
	binary.LittleEndian.PutUint64(b[:], uint64(left/time.Second))
	binary.LittleEndian.PutUint64(b[8:], uint64(left%time.Second/unit))
	_ = procmem.Write(t.process.via, at, b[:]) // it takes longer then
}

func (t *liveThread) timespec(at uint64) time.Duration {
	var b [16]byte
	if at == 0 || procmem.Read(t.process.via, at, b[:]) != nil {
		return 0
	}
	s, ns := int64(u64(b[:], 0)), int64(u64(b[:], 1))
	if s < 0 || s > int64(time.Duration(1<<62).Seconds()) {
		return 0
	}
	return time.Duration(s)*time.Second + time.Duration(ns)
}

// passedOf reads what a thread has done (proc_pid_status(5) and
// Documentation/scheduler/sched-stats.rst).
func passedOf(tid int) (p passed) {
	var buf [4096]byte
	if n := readSmall(fmt.Sprintf("/proc/%d/status", tid), buf[:]); n > 0 {
		p.switches, _ = lastNumber(buf[:n], "\nvoluntary_ctxt_switches:")
	}
	n := readSmall(fmt.Sprintf("/proc/%d/schedstat", tid), buf[:])
	first, _, _ := bytes.Cut(buf[:n], []byte{' '})
	if ns, err := number(first); err == nil {
		p.ran = time.Duration(ns)
	}
	return p
}

// readSmall reads a file of /proc at once; 0 if there is none.
func readSmall(path string, buf []byte) int {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, buf)
	if err != nil {
		return 0
	}
	return n
}

// abortSequence has a thread that stands inside a restartable sequence go on
// where that is aborted (rseq(2)): the kernel does so when it runs something
// else in between, which it cannot know of what we run.
func (t *liveThread) abortSequence(area uint64) {
	if _, in := t.regs.InSyscall(); in || area == 0 {
		return
	}
	// struct rseq, and struct rseq_cs: version, flags, start, length, abort.
	var at [8]byte
	var cs [32]byte
	if procmem.Read(t.process.via, area+8, at[:]) != nil || u64(at[:], 0) == 0 {
		return
	}
	if procmem.Read(t.process.via, u64(at[:], 0), cs[:]) != nil {
		return
	}
	if start, length, abort := u64(cs[:], 1), u64(cs[:], 2), u64(cs[:], 3); instruction(&t.regs)-start < length {
		jump(&t.regs, abort)
	}
}
