package descriptor

import (
	"os"

	"github.com/sandtree/sandtree/internal/linux/acceptqueue"
	"github.com/sandtree/sandtree/internal/process/image"
)

// Process is one process to capture, all of whose threads are stopped and share
// one table of descriptors. Zombies have none and are left out.
type Process struct {
	HostPID int // in the numbers of this process; of another thread if the main one has ended
	PID     int // inside
	PIDFD   int
	Comm    string
	// Group and Terminal are inside numbers: the process group, and the N of
	// the controlling terminal /dev/pts/N, or -1.
	Group    int
	Terminal int
	// Numbers are the open descriptors in ascending order, as [List] gives
	// them; nil lets Capture list them.
	Numbers []int
	// CloseOnExec has FD_CLOEXEC of each of Numbers as F_GETFD gives it
	// inside. Without it /proc/PID/fdinfo is asked, which is wrong for
	// descriptors that came from TIOCGPTPEER.
	CloseOnExec []bool
}

// Stream is the place of a pipe in a session.
type Stream struct {
	SessionID string
	Number    int // 0, 1, 2
	// Outer is this process's end of it, or -1.
	Outer int
}

// Env is the sandbox that processes are captured in. Its functions are called
// in the frozen window.
type Env struct {
	Root int // a descriptor of the sandbox's root directory
	// Session tells whether a pipe is a session's, by st_dev and st_ino.
	Session func(dev, ino uint64) (Stream, bool)
	// SessionPTY tells whether the terminal /dev/pts/N is a session's, with
	// the session and this process's descriptor of the master.
	SessionPTY func(n int) (id string, master int, ok bool)
	// PathOf finds the path inside of the file that a handle stands for, of
	// the file system of the root (see rootfs.Store). It may be nil.
	PathOf func(typ int32, handle []byte) (string, error)
	// Clocks are those inside.
	Clocks Clocks
	// Streams are the output pipes of sessions that run, and Terminals the N of
	// their terminals. What is unread in them is captured even if no process
	// has them open any more.
	//
	// Unread output of a terminal is taken out and put back, so nobody else may
	// read the masters meanwhile. Pipes may be read at any time.
	Streams   []Stream
	Terminals []int
	// Hasty refuses, as being of the moment, what takes many milliseconds to capture and is likely to be gone
	// soon: unread events of inotify.
	Hasty bool
	// Unaccepted gives what reads data of connections that nobody has accepted, nil
	// if there is nothing (yet): they are refused then. It may be nil.
	Unaccepted func() *acceptqueue.Reader
	// Queues is the directory of the POSIX message queues inside, of which those that
	// nobody has open are captured, too; nil: they are not.
	Queues *os.File
	// MaxContent bounds the bytes of deleted files and in pipes that one
	// capture saves; 0 is [DefaultMaxContent].
	MaxContent int64
}

// DefaultMaxContent is how many bytes of deleted files and in pipes a capture
// saves if nothing else is asked for.
const DefaultMaxContent = 256 << 20

// Result is what a capture found.
type Result struct {
	Files     []*image.File
	Terminals []*image.Terminal
	// Tables are the descriptors of each process, in the order of the
	// processes.
	Tables [][]image.Descriptor
}

// Terminal is the index of /dev/pts/N in Terminals, or -1.
func (r *Result) Terminal(n int) int {
	for i, t := range r.Terminals {
		if t.Number == n {
			return i
		}
	}
	return -1
}
