// Package image holds what a checkpoint knows of a process tree: data alone,
// filled by capture and read by restore.
//
// Process and thread numbers are those inside the sandbox. Addresses are those
// of the process. Nothing here refers to a live process of the host.
package image

import "golang.org/x/sys/unix"

// Tree is a captured tree of processes, without the PID 1 that is sandtree's
// own.
type Tree struct {
	// Processes stand parents before children. Roots have Parent 1.
	Processes []*Process
	// Files are the open file descriptions, each once however many
	// descriptors of however many processes refer to it.
	Files []*File
	// Shared are the objects that shared mappings without a file show.
	Shared []*Shared
	// SystemV are the objects of System V IPC.
	SystemV SystemV
	// Terminals are the pseudoterminals that descriptors refer to or that
	// sessions are bound to.
	Terminals []*Terminal
	// Monotonic and Boottime are the clocks' readings inside at the stop, in
	// nanoseconds.
	Monotonic, Boottime int64
	// LastPID is the number that the kernel gave last in the pid namespace.
	LastPID int
}

// State is what a process was doing.
type State byte

// States of a process.
const (
	Running State = 'R' // or sleeping
	Stopped State = 'T' // by job control
	Zombie  State = 'Z'
)

// Process is one process.
type Process struct {
	PID, Parent, Group, Session int
	State                       State
	ExitStatus                  int // of a zombie, as wait(2) gives it
	// EndedAs are a zombie's credentials, less the secure bits; nil in images of older
	// versions.
	EndedAs *Credentials
	// StopSignal stopped a process that is Stopped; StopReported tells whether
	// its parent was told by wait(2).
	StopSignal   int
	StopReported bool
	ExitSignal   int // that its parent gets when it ends
	Comm         string
	Threads      []*Thread // the leader first
	Memory       Memory
	Exe          string // path inside
	Cwd          string
	Root         string // "/" unless it has changed its root
	// ExeFile and CwdFile are 1 above the index in Tree.Files of a program file
	// and a working directory that have no name any more, or else 0.
	ExeFile, CwdFile int
	Umask            uint32
	// Handlers are struct kernel_sigaction by signal number minus one.
	Handlers    [64]Handler
	Pending     [][128]byte // siginfo_t of signals pending for the whole process
	Descriptors []Descriptor
	Limits      [16]unix.Rlimit
	Timers      [3]unix.Itimerval // real, virtual, profiling
	POSIXTimers []POSIXTimer      // by id
	Personality uint32
	Dumpable    int
	Subreaper   bool
	NoHugePages bool // PR_SET_THP_DISABLE
	// ButAdvised is set if memory that asks for huge pages gets them nevertheless
	// (PR_THP_DISABLE_EXCEPT_ADVISED, Linux 6.18).
	ButAdvised bool
	WriteExec  int // PR_SET_MDWE: what is denied of memory to write and execute
	// Membarrier are the commands of membarrier(2) by which it has registered.
	Membarrier  uint32
	OOMScoreAdj int
	// CoreFilter is its coredump_filter (core(5)); nil in images of older versions.
	CoreFilter *uint32
	// Terminal is the index of the controlling terminal in Tree.Terminals, or
	// -1.
	Terminal int
}

// POSIXTimer is a timer that timer_create(2) made.
type POSIXTimer struct {
	ID int
	// Timer's Expires is what remains of the processor time, for a clock of that.
	Timer
	// Notify is the sigev_notify of struct sigevent (SIGEV_SIGNAL, SIGEV_NONE or
	// SIGEV_THREAD_ID), Signal and Value what it sends.
	Notify, Signal int
	Value          uint64
	// TID is the thread that gets the signal, with SIGEV_THREAD_ID, or else 0.
	TID int
}

// Handler is struct sigaction as rt_sigaction(2) takes it.
type Handler struct {
	Action, Flags, Restorer, Mask uint64
}

// Thread is one thread.
type Thread struct {
	TID        int
	Regs       unix.PtraceRegs
	XState     []byte // XSAVE area
	Sigmask    uint64
	Pending    [][128]byte
	AltStack   [24]byte // stack_t
	RobustList [2]uint64
	ClearTID   uint64
	Rseq       Rseq
	Creds      Credentials
	Sched      Sched
	Name       string
	// Filters are the seccomp filters beyond those of the sandbox, the oldest
	// first, each an array of struct sock_filter.
	Filters [][]byte
	// PDeathSig is sent to the thread's process when its parent ends.
	PDeathSig int
	Modes     Modes
	// Ended is set for a main thread that has ended while others went on, with
	// ExitStatus as wait(2) would give it.
	Ended      bool
	ExitStatus int
}

// Modes are what a thread has set by prctl(2) that hardly any does.
type Modes struct {
	// Dispatch is PR_SET_SYSCALL_USER_DISPATCH: mode, selector's address, offset and
	// length of the range that is let through.
	Dispatch [4]uint64
	// TimeStamp is PR_SET_TSC.
	TimeStamp int
	// Speculation is PR_SET_SPECULATION_CTRL of store bypass, indirect branches and the
	// first level cache, where the thread has a setting of its own; else 0.
	Speculation [3]int
	// MachineCheck is PR_MCE_KILL, less PR_MCE_KILL_DEFAULT.
	MachineCheck int
}

// Rseq is a registration of restartable sequences.
type Rseq struct {
	Pointer         uint64
	Size, Signature uint32
}

// Credentials are a thread's, in the numbers of the sandbox's user namespace.
type Credentials struct {
	UID, GID [4]int // real, effective, saved, file system
	Groups   []int
	// Capability sets, and no_new_privs and securebits (capabilities(7)).
	Inheritable, Permitted, Effective, Bounding, Ambient uint64
	NoNewPrivs                                           bool
	SecureBits                                           uint32
}

// Sched is a thread's scheduling.
type Sched struct {
	Policy, Nice, Priority int
	ResetOnFork            bool // SCHED_RESET_ON_FORK
	Affinity               unix.CPUSet
	TimerSlack             uint64 // nanoseconds
	IOPriority             int    // as ioprio_get(2) has it
}
