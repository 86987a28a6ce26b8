package process

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// A main thread may end while others of its process go on (pthread_exit in main). It
// is a zombie until they have ended, too, and keeps the process's number; its
// memory and descriptors are reached by another thread.

// pidfdThread is PIDFD_THREAD of pidfd_open(2) (Linux 6.9).
const pidfdThread = unix.O_EXCL

// leaderEnded reports whether the main thread was not among those that stand.
func (p *liveProcess) leaderEnded() bool { return p.threads[0].tid != p.pid }

// face finds the thread by which a process that stands is reached.
func (p *liveProcess) face() error {
	via := p.threads[0].host
	if via == p.via && (via == p.host) == (p.table == p.pidfd) {
		return nil
	}
	p.closeTable()
	p.via = via
	p.memory.Via(via)
	if via == p.host {
		return nil
	}
	fd, err := unix.PidfdOpen(via, pidfdThread)
	if err == unix.EINVAL {
		return fault.New(fault.Uncapturable, "%s has ended its main thread while others go on", describe(p)).
			WithHint("that can be kept from Linux 6.9 on")
	}
	if err != nil {
		return fmt.Errorf("pidfd of a thread of process %d: %w", p.pid, err)
	}
	p.table = fd
	return nil
}

func (p *liveProcess) closeTable() {
	if p.table != p.pidfd {
		_ = unix.Close(p.table)
	}
	p.table = p.pidfd
}

// endedLeader is the record of a main thread that has ended. What matters of it is
// its status, which is the process's if the others do not end it by another one.
func endedLeader(p *liveProcess) *image.Thread {
	const headSize = 24 // struct robust_list_head; no other length is taken
	return &image.Thread{
		TID: p.pid, Name: p.stat.comm, Ended: true, ExitStatus: p.stat.exitCode, Sigmask: ^uint64(0), RobustList: [2]uint64{0, headSize},
	}
}

// copyLeader gives an ended main thread what its restored one ends with: the state of
// another thread, without what that has registered.
func copyLeader(m *image.Process) {
	lead := m.Threads[0]
	if !lead.Ended {
		return
	}
	t := m.Threads[1]
	lead.Regs, lead.XState, lead.Creds, lead.Sched, lead.Filters = t.Regs, t.XState, t.Creds, t.Sched, t.Filters
	const disable = 2 // SS_DISABLE
	binary.LittleEndian.PutUint32(lead.AltStack[8:], disable)
}

// endingRegisters have a restored main thread end as it had.
func endingRegisters(m *image.Thread, syscall uint64) tracee.Registers {
	r := tracee.Registers{PtraceRegs: m.Regs}
	r.Call(syscall, unix.SYS_EXIT, uint64(unix.WaitStatus(m.ExitStatus).ExitStatus()))
	return r
}
