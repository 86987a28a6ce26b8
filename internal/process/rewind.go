package process

import (
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
	call     call
	since    time.Time // of the first rewind
	switches int       // voluntary context switches when it went on
}

// call is a system call with all that tells it from another one.
type call struct {
	nr     int
	ip, sp uint64
	args   [6]uint64
}

// resumeRegisters are those that a thread goes on with. A stop makes calls that
// are never restarted return EINTR, though no signal came: they are entered
// again, so that the stop is not felt.
func (l *Live) resumeRegisters(t *liveThread) tracee.Registers {
	r := t.regs
	nr, in := r.InSyscall()
	if !in || r.Result() != -int64(unix.EINTR) || t.signalled() {
		t.rewound = rewound{}
		return r
	}
	c := callOf(nr, &r)
	timeout, result := t.timeout(&c)
	if timeout <= 0 {
		t.rewound = rewound{}
		r.Rewind()
		return r
	}
	now := time.Now()
	if t.rewound.call != c || t.switches-t.rewound.switches > 2 { // it sleeps once, and stops once
		t.rewound = rewound{call: c, since: now}
	} else if now.Sub(t.rewound.since) >= timeout {
		t.rewound = rewound{}
		r.SetResult(result)
		return r
	}
	t.rewound.switches = voluntarySwitches(t.host)
	r.Rewind()
	return r
}

// noteSwitches counts the context switches of a thread that has just stopped
// and whose call was rewound the last time: more than a sleep and the stop mean
// that it has returned from that one.
func (t *liveThread) noteSwitches() {
	if t.rewound.call.nr != 0 {
		t.switches = voluntarySwitches(t.host)
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
// calls without a timeout. These are all that a stop interrupts for good, but
// for sockets (signal(7)).
func (t *liveThread) timeout(c *call) (d time.Duration, result int64) {
	switch c.nr {
	case unix.SYS_EPOLL_WAIT, unix.SYS_EPOLL_PWAIT:
		return time.Duration(int32(c.args[3])) * time.Millisecond, 0
	case unix.SYS_EPOLL_PWAIT2:
		return t.timespec(c.args[3]), 0
	case unix.SYS_RT_SIGTIMEDWAIT:
		return t.timespec(c.args[2]), -int64(unix.EAGAIN)
	case unix.SYS_SEMTIMEDOP:
		return t.timespec(c.args[3]), -int64(unix.EAGAIN)
	}
	return 0, 0
}

func (t *liveThread) timespec(at uint64) time.Duration {
	var b [16]byte
	if at == 0 || procmem.Read(t.process.host, at, b[:]) != nil {
		return 0
	}
	s, ns := int64(u64(b[:], 0)), int64(u64(b[:], 1))
	if s < 0 || s > int64(time.Duration(1<<62).Seconds()) {
		return 0
	}
	return time.Duration(s)*time.Second + time.Duration(ns)
}

// voluntarySwitches is how often a thread has gone to sleep; 0 if that is not
// known.
func voluntarySwitches(tid int) int {
	var buf [4096]byte
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/status", tid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	n, err := unix.Read(fd, buf[:])
	_ = unix.Close(fd)
	if err != nil {
		return 0
	}
	v, err := lastNumber(buf[:n], "\nvoluntary_ctxt_switches:")
	if err != nil {
		return 0
	}
	return v
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
	if procmem.Read(t.process.host, area+8, at[:]) != nil || u64(at[:], 0) == 0 {
		return
	}
	if procmem.Read(t.process.host, u64(at[:], 0), cs[:]) != nil {
		return
	}
	if start, length, abort := u64(cs[:], 1), u64(cs[:], 2), u64(cs[:], 3); instruction(&t.regs)-start < length {
		jump(&t.regs, abort)
	}
}
