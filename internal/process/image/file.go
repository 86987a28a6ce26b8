package image

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/xattr"
)

// Descriptor is an entry of a process's table.
type Descriptor struct {
	Number      int
	CloseOnExec bool
	File        int // index in Tree.Files
	// Locks are those of the process's own (fcntl(2), F_SETLK) that it has
	// taken by this descriptor.
	Locks []Lock
}

// FileKind says what an open file description is.
type FileKind string

// Kinds of open file descriptions. What is not here is refused by name.
const (
	Regular   FileKind = "regular"
	Directory FileKind = "directory"
	Pipe      FileKind = "pipe"
	FIFO      FileKind = "fifo"
	PTYMaster FileKind = "pty-master"
	PTYSlave  FileKind = "pty-slave"
	CtlTTY    FileKind = "tty" // /dev/tty
	Eventfd   FileKind = "eventfd"
	Epoll     FileKind = "epoll"
	Device    FileKind = "device"  // /dev/null and its like
	ProcFile  FileKind = "proc"    // a file of /proc or /sys
	Session   FileKind = "session" // a session's pipe: its outer end is the supervisor's
	PathOnly  FileKind = "path"    // opened with O_PATH
	Timerfd   FileKind = "timerfd"
	Signalfd  FileKind = "signalfd"
	Memfd     FileKind = "memfd"
	PIDFD     FileKind = "pidfd"
	Sockets   FileKind = "socket" // of the families that Socket.Domain may have
	Inotify   FileKind = "inotify"
	// MessageQueues are those of POSIX (mq_overview(7)).
	MessageQueues FileKind = "message-queue"
)

// File is an open file description. Which of the fields below mean something
// depends on its kind.
type File struct {
	Kind  FileKind
	Flags int    // F_GETFL
	Path  string // inside
	Pos   int64
	// Deleted files have no name (any more), or another file has it now. The
	// content of a regular one is Blob, with the file's owner as the host
	// numbers it and its time of modification.
	Deleted  bool
	Mode     uint32 // st_mode
	Dev, Ino uint64 // as fstat(2) gives them
	Rdev     uint64
	UID, GID uint32
	Modified unix.Timespec
	Blob     *Blob
	// Attributes are those of a deleted file or directory, and of a memfd; the ids in
	// access control lists are the host's.
	Attributes []xattr.Attribute
	// Object groups the two ends of a pipe, and openings of one FIFO or one
	// deleted file: equal numbers, same object. It is 0 for other files.
	// Content, Packets and Blob stand in the first file of an object alone.
	Object int
	// Content is what a pipe or FIFO held, PipeSize its F_GETPIPE_SZ; Packets
	// are the lengths of the messages if it was written in packet mode
	// (O_DIRECT). Slots are how much of it is in each page of the pipe, if that is not
	// as much as there is room for: it says how much more can be written.
	Content  []byte
	PipeSize int
	Packets  []int
	Slots    []int
	// Count and Semaphore are an eventfd's.
	Count     uint64
	Semaphore bool
	// Socket is set for a socket.
	Socket *Socket
	// Watches are an epoll's, in order.
	Watches []Watch
	// Terminal is the index in Tree.Terminals of a pty's end.
	Terminal int
	// SessionID and Stream (0, 1, 2) name a session's pipe.
	SessionID string
	Stream    int
	// Timer is a timerfd's. TimerFlags are those it was last set with
	// (TFD_TIMER_ABSTIME, TFD_TIMER_CANCEL_ON_SET); TimerTicks are how often it
	// fired since it was read.
	Timer      Timer
	TimerFlags int
	TimerTicks uint64
	// Sigmask are a signalfd's signals, the first in bit 0.
	Sigmask uint64
	// Seals are a memfd's (F_GET_SEALS). Its Path is the name it was made with,
	// its content is kept like that of a deleted file.
	Seals int
	// PID is whom a pidfd refers to; 0 if it has ended and was reaped.
	PID int
	// Queue is a message queue's, with messages in the first file of an object alone.
	Queue *POSIXQueue
	// Marks are an inotify instance's watches, in the order in which fdinfo lists them,
	// Happened are the events that were not read yet. NextMark is the number of
	// its next watch, or 0 if that was not asked.
	Marks    []Mark
	Happened []Happening
	NextMark int
	// Locks belong to the description: flock(2), F_OFD_SETLK, F_SETLEASE.
	Locks []Lock
	// Owner is who gets signals of the description (F_SETOWN, F_SETSIG).
	OwnerType, Owner, OwnerSignal int
}

// POSIXQueue is a POSIX message queue: how many messages of which size it may hold,
// and what it does, in the order in which they are received.
type POSIXQueue struct {
	MaxMessages, MessageSize int64
	Messages                 []QueuedMessage
}

// QueuedMessage is one message.
type QueuedMessage struct {
	Priority uint32
	Text     []byte
}

// Watch is one entry of an epoll's interest list.
type Watch struct {
	Number int // the descriptor's number when it was added
	File   int // index in Tree.Files
	Events uint32
	Data   uint64
}

// Mark is a watch of an inotify instance.
type Mark struct {
	Number int    // that inotify_add_watch(2) gave
	Path   string // inside, of what is watched
	Mask   uint32
}

// Happening is an unread event of an inotify instance.
type Happening struct {
	Mark   int // the watch's number; -1 if events were lost
	Mask   uint32
	Cookie uint32 // what the two events of a renaming have in common
	Name   []byte
}

// Timer is a timer of the kernel.
type Timer struct {
	Clock int // CLOCK_
	// Expires is when it fires next, in nanoseconds; 0: never. It is a time of
	// the machine's clock (CLOCK_REALTIME, CLOCK_TAI) for a timer of such a clock
	// that was set to a time of day, of CLOCK_BOOTTIME inside for one of that
	// clock, and of CLOCK_MONOTONIC inside for all others.
	Expires int64
	// Interval is the time between later expirations, in nanoseconds; 0: none.
	Interval int64
}

// LockKind says how a lock was taken.
type LockKind string

// Kinds of locks.
const (
	Flock LockKind = "flock" // flock(2)
	POSIX LockKind = "posix" // F_SETLK
	OFD   LockKind = "ofd"   // F_OFD_SETLK
	Lease LockKind = "lease" // F_SETLEASE
)

// Lock is a lock of a file.
type Lock struct {
	Kind  LockKind
	Write bool // and not shared
	// Start and Length are its range in bytes, as fcntl(2) takes them: Length 0
	// is up to any end. They are 0 for locks of whole files.
	Start, Length int64
}

// Blob is the content of a deleted file, in an anonymous file of the same
// length that has its holes in the same places. It is read by any number of
// restores and never written.
type Blob struct {
	File *os.File
	Size int64
}

// Close gives the memory back. The collector does the same for a blob that
// nobody closed.
func (b *Blob) Close() error { return b.File.Close() }

// Terminal is a pseudoterminal of the sandbox's devpts.
type Terminal struct {
	Number    int          // N of /dev/pts/N
	Termios   unix.Termios // struct termios2, with the speeds
	Winsize   unix.Winsize
	Group     int // foreground process group, 0 if none
	Session   int // whose controlling terminal it is, 0 if none
	Packet    bool
	Locked    bool
	Exclusive bool
	Stopped   bool   // by ^S
	Held      bool   // by TCOOFF of tcflow(3)
	Mode      uint32 // st_mode of /dev/pts/N
	UID, GID  uint32 // its owner as the host numbers it
	// Output was written by the program and not yet read.
	Output []byte
	// Input was typed and not yet read. A NUL stands for an end of file in
	// canonical mode.
	Input []byte
	// MasterGone: the master was closed, so that the slave is hung up.
	// SlaveGone: every opening of the slave was closed, so that the master is
	// hung up.
	MasterGone, SlaveGone bool
	// SessionID is set if the master is the supervisor's, for that session.
	SessionID string
}
