package process

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/confine/seccomp"
	"github.com/sandtree/sandtree/internal/linux/procmem"
	"github.com/sandtree/sandtree/internal/linux/ptrace"
	"github.com/sandtree/sandtree/internal/tracee"
)

// restartBlock is the result of calls that the kernel goes on with by itself, with
// what remains of their timeout (ERESTART_RESTARTBLOCK): sleeps, poll and futex. It
// has them call restart_syscall(2) for that, in whose place a restored thread, of
// which the kernel remembers nothing, has to make the call itself.
const restartBlock = -516

// trueCall is the number of the call that a thread stopped in, where the kernel shows
// restart_syscall: one that was stopped before. -1 if nothing tells.
func (t *liveThread) trueCall(r *tracee.Registers) int {
	nr, in := r.InSyscall()
	if !in || r.Result() != restartBlock {
		return nr
	}
	c := callOf(nr, r)
	if nr != unix.SYS_RESTART_SYSCALL {
		t.restarted = c
		return nr
	}
	if c.nr = t.restarted.nr; c == t.restarted {
		return c.nr
	}
	// Others stopped it first. The C library puts the number right before the call.
	t.restarted = call{}
	const movEAX = 0xb8
	var code [7]byte // mov $number, %eax; syscall
	if procmem.Read(t.process.via, instruction(r)-uint64(len(code)), code[:]) != nil || code[0] != movEAX {
		return -1
	}
	switch nr := int(binary.LittleEndian.Uint32(code[1:])); nr {
	case unix.SYS_NANOSLEEP, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_POLL, unix.SYS_FUTEX:
		return nr
	}
	return -1
}

// deniesRestart reports whether a filter of a thread's own does anything but let
// restart_syscall(2) through, by which it would go on.
func (l *Live) deniesRestart(t *liveThread, r *tracee.Registers) bool {
	c := callOf(unix.SYS_RESTART_SYSCALL, r)
	d := seccomp.Data{NR: uint32(c.nr), Arch: seccomp.AuditArch, IP: c.ip, Args: c.args}
	for i := l.cfg.Filters; ptrace.HasSeccompFilter(t.host, i); i++ { // confinement's come first
		f, err := ptrace.SeccompFilter(t.host, i)
		if err != nil {
			return true // the call that it sleeps in it was let make
		}
		did, err := seccomp.Run(seccomp.Program(f), d)
		if err != nil || did&unix.SECCOMP_RET_ACTION_FULL != seccomp.Allow && did&unix.SECCOMP_RET_ACTION_FULL != unix.SECCOMP_RET_LOG {
			return true
		}
	}
	return false
}
