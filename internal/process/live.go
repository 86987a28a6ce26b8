package process

import (
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/ptrace"
	"github.com/sandtree/sandtree/internal/process/descriptor"
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/process/memory"
	"github.com/sandtree/sandtree/internal/tracee"
)

// Config says which processes a [Live] follows. The descriptors stay the
// caller's and must outlive it.
type Config struct {
	// Threads is cgroup.threads of the incarnation's cgroup.
	Threads int
	// Init is PID 1's number on the host. It is left alone.
	Init int
	// Proc is the directory /proc of the incarnation.
	Proc int
	// Root is its root directory.
	Root int
	// Owner is the user, on the host, that its user namespace belongs to.
	Owner uint32
	// Device is st_dev of the root's overlay.
	Device uint64
	// MonotonicOffset and BoottimeOffset are those of its time namespace.
	MonotonicOffset, BoottimeOffset time.Duration
	// Filters is how many seccomp filters confinement installs.
	Filters int
	// Realtime gives the processes real-time priority from just before they
	// are stopped until just before they go on: a thread must get a processor
	// to stop on it. While they stand, they and the thread that stops them are on
	// one processor.
	Realtime bool
	// Beside runs something on another OS thread while the processes stand. What
	// it returns waits for the outcome, and is called once.
	Beside func(f func() error) (outcome func() error)
	// Scratch is the thread's.
	Scratch *memory.Scratch
}

// Live follows the processes of one incarnation from checkpoint to checkpoint.
// It belongs to one OS thread.
type Live struct {
	cfg     Config
	procs   map[int]*liveProcess // by number on the host
	threads map[int]*liveThread
	order   []*liveProcess // those of the current stop, by number inside
	round   uint64         // of the current or last stop
	stopped bool
	scanned bool // the current or last capture looked at memory
	alarm   *alarm
	pin     pin

	ipc         int      // the incarnation's IPC namespace; -1: not opened yet
	queues      *os.File // see openQueues
	lists       bool     // whether queues was opened
	descriptors descriptor.Capturer
	origins     *memory.Origins
	undescribed map[sharedKey]bool // shared memory that no descriptor referred to at the last stop
	spare       *memory.Scratch    // of the thread that stops; nil: it was not needed yet
	buf         []byte
	tids        []int
	begun       []*liveThread // whose batches run
	lastPID     int           // that the pid namespace gave; 0: not known
	signals     [peeked][128]byte
	undertaker  *undertaker
	strays      []stray
	vforks      []*seized // told to stop, and wait for a child of vfork(2)
}

// liveProcess is one process that is followed.
type liveProcess struct {
	host, pid int
	pidfd     int
	// via is the thread by whose number its memory and files are reached, and
	// table a pidfd by which its descriptors are: the leader, or another one if that
	// has ended.
	via, table  int
	round       uint64
	threads     []*liveThread // the leader first
	apart       bool          // shares nothing with another process
	met         uint64        // the round of the stop that found it
	memory      *memory.Tracker
	syscall     uint64      // address of a syscall instruction in its memory; 0: not known
	behind      []image.VMA // what was mapped where an area is now
	numbers     []int       // of its descriptors
	closeOnExec []bool      // of each
	stat        stat
	program     *program          // of a program file without a name
	lineage     int               // that its memory was captured in last; 0: none
	renamed     map[uint64]rename // by address, at the last stop; see findNames
	image       *image.Process    // filled by the current capture
}

// liveThread is one thread that is followed.
type liveThread struct {
	host, tid int
	process   *liveProcess
	round     uint64
	tracee    *tracee.Tracee
	regs      tracee.Registers
	mask      uint64 // of signals; while it stands, another one holds
	deliver   int    // signal to deliver when it goes on
	pending   [128]byte
	xstate    []byte
	boost     boost
	affinity  unix.CPUSet // its own, while it stands
	slack     int         // the timer slack that it inherited; 0: not known
	rewound   rewound
	passed    passed                 // at this stop, if its call was entered anew at the last
	stood     time.Time              // when it stopped; zero: it has not run yet
	dispatch  ptrace.SyscallDispatch // its own, while it stands
	restarted call                   // that the kernel goes on with by restart_syscall(2)
	jobStop   int                    // signal of the job control that it stood by, or 0
	questions *questions
	slot      int // where they run
	image     *image.Thread
}

// NewLive starts to follow the processes of an incarnation. None is touched
// before the first stop.
func NewLive(cfg Config) (*Live, error) {
	a, err := newAlarm()
	if err != nil {
		return nil, err
	}
	return &Live{
		undertaker: newUndertaker(),
		cfg:        cfg, procs: map[int]*liveProcess{}, threads: map[int]*liveThread{},
		ipc: -1, alarm: a, origins: memory.NewOrigins(), buf: make([]byte, 1<<16),
	}, nil
}

// second is scratch memory of the thread that stops, beside that of another one which looks
// at memory.
func (l *Live) second() *memory.Scratch {
	if l.spare == nil {
		l.spare = memory.NewScratch()
	}
	return l.spare
}

// LetGo makes a stopped tree go on, and tells whether this OS thread traces nobody
// any more: a process that has a tracer does not end before the tracer has seen it.
func (l *Live) LetGo() (all bool, err error) {
	if l.stopped {
		err = l.Resume()
	}
	return len(l.strays) == 0 && len(l.vforks) == 0, err
}

// Close ends the following; a stopped tree goes on. While a memory is there it takes
// milliseconds to end the tracking of its writes, afterwards none.
func (l *Live) Close() error {
	_, err := l.LetGo()
	for _, p := range l.procs {
		p.close()
	}
	l.procs, l.threads = nil, nil
	l.descriptors.Close()
	if l.ipc >= 0 {
		_ = unix.Close(l.ipc)
	}
	_ = l.queues.Close() // also of none
	l.alarm.close()
	return err
}

func (p *liveProcess) close() {
	if p.memory != nil {
		p.memory.Close()
	}
	p.program.close()
	p.closeTable()
	_ = unix.Close(p.pidfd)
}

// meet makes the records of a thread that was not there at the last stop. It stands.
func (l *Live) meet(s *seized) (*liveThread, error) {
	tid := s.tid
	if s.status == nil {
		st, err := readStatus(tid)
		if err != nil {
			return nil, err
		}
		s.status = &st
	}
	st := s.status
	t := &liveThread{host: tid, tid: st.inner, xstate: make([]byte, xstateMax)}
	p := l.procs[st.leader]
	if p == nil {
		var err error
		if p, err = l.meetProcess(st.leader, tid); err != nil {
			return nil, err
		}
		l.procs[st.leader] = p
	}
	t.process = p
	if tid == st.leader {
		p.threads = append([]*liveThread{t}, p.threads...)
	} else {
		p.threads = append(p.threads, t)
	}
	l.threads[tid] = t
	return t, nil
}

// meetProcess makes the record of a process, of which a thread stands.
func (l *Live) meetProcess(host, tid int) (*liveProcess, error) {
	st, err := readStatus(host)
	if err != nil {
		return nil, err
	}
	p := &liveProcess{host: host, pid: st.inner, met: l.round, via: host}
	if ended(host) {
		p.via = tid
	}
	if p.pidfd, err = unix.PidfdOpen(host, 0); err != nil {
		return nil, fmt.Errorf("pidfd of process %d: %w", p.pid, err)
	}
	p.table = p.pidfd
	if p.memory, err = memory.NewTracker(p.via, p.pid, l.cfg.Scratch); err != nil {
		_ = unix.Close(p.pidfd)
		return nil, err
	}
	p.memory.UseOrigins(l.origins)
	return p, nil
}

// drop forgets threads and processes that were not found at this stop.
func (l *Live) drop() {
	for _, t := range l.threads {
		if t.round == l.round {
			continue
		}
		l.dropThread(t)
	}
}

// dropThread forgets a thread that has ended, and its process with the last.
func (l *Live) dropThread(t *liveThread) {
	delete(l.threads, t.host)
	p := t.process
	p.threads = slices.DeleteFunc(p.threads, func(x *liveThread) bool { return x == t })
	if len(p.threads) == 0 && l.procs[p.host] == p {
		delete(l.procs, p.host)
		p.close()
	}
}
