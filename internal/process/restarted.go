package process

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/procmem"
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
