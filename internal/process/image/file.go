package image

import "golang.org/x/sys/unix"

// Descriptor is an entry of a process's table.
type Descriptor struct {
	Number      int
	CloseOnExec bool
	File        int // index in Tree.Files
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
)

// File is an open file description. Which of the fields below mean something
// depends on its kind.
type File struct {
	Kind  FileKind
	Flags int    // F_GETFL
	Path  string // inside
	Pos   int64
	// Deleted files have no name (any more), or another file has it now.
	// Their content is Content.
	Deleted bool
	Mode    uint32 // st_mode
	Ino     uint64
	Rdev    uint64
	Content []byte
	// Object groups the two ends of a pipe, and openings of one FIFO or one
	// deleted file: equal numbers, same object.
	Object int
	// WriteEnd tells a pipe's ends apart; PipeSize is F_GETPIPE_SZ; Packets
	// are the lengths of the messages of a packet pipe (O_DIRECT).
	WriteEnd bool
	PipeSize int
	Packets  []int
	// Count and Semaphore are an eventfd's.
	Count     uint64
	Semaphore bool
	// Watches are an epoll's, in order.
	Watches []Watch
	// Terminal is the index in Tree.Terminals of a pty's end.
	Terminal int
	// SessionID and Stream (0, 1, 2) name a session's pipe.
	SessionID string
	Stream    int
	// Owner is who gets signals of the description (F_SETOWN, F_SETSIG).
	OwnerType, Owner, OwnerSignal int
}

// Watch is one entry of an epoll's interest list.
type Watch struct {
	Number int // the descriptor's number when it was added
	File   int // index in Tree.Files
	Events uint32
	Data   uint64
}

// Terminal is a pseudoterminal of the sandbox's devpts.
type Terminal struct {
	Number  int // N of /dev/pts/N
	Termios unix.Termios
	Winsize unix.Winsize
	Group   int // foreground process group, 0 if none
	Session int // whose controlling terminal it is, 0 if none
	Packet  bool
	Locked  bool
	Output  []byte // written by the program and not yet read
	Input   []byte // typed and not yet read
	// SessionID is set if the master is the supervisor's, for that session.
	SessionID string
}
