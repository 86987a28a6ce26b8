package descriptor

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	events "github.com/sandtree/sandtree/internal/linux/inotify"
	"github.com/sandtree/sandtree/internal/process/image"
)

// Target is the incarnation that descriptors are restored in.
type Target struct {
	Root int // a descriptor of its root directory
	// Session gives the inner end of a session's pipe. Open duplicates it, so
	// both share the description: the caller closes its own.
	Session func(id string, stream int) (fd int, ok bool)
	// Clocks are those inside.
	Clocks Clocks
	// Exists tells whether a process of that number is restored.
	Exists func(pid int) bool
	// Ended makes a pidfd of a process of the incarnation that has ended and
	// was reaped. It is the caller's.
	Ended func() (pidfd int, err error)
	// Queues are for POSIX message queues; nil if there are none.
	Queues Queues
}

// Queues makes and opens the POSIX message queues of an incarnation (mq_overview(7)).
// Opening one by its descriptor would give O_LARGEFILE to the description. The
// descriptors are the caller's.
type Queues interface {
	// Make makes an empty queue with the file's name, or another one for a while if the
	// file is deleted. The descriptor is for reading, writing and not waiting.
	Make(f *image.File) (fd int, err error)
	// Open opens the queue that was made for the file's object, with the file's flags.
	Open(f *image.File) (fd int, err error)
	// Finish takes the names away from those that are deleted.
	Finish() error
}

// errLate is the error of opening a late kind here.
var errLate = errors.New("this kind is opened by a process")

// Opened are descriptions opened in this process for a captured tree. It is
// for one thread at a time.
type Opened struct {
	target    Target
	files     []*image.File
	fd        []int // of each file, -1 for late ones
	terminals []*openTerminal
	pipes     map[int]*pipeEnds
	objects   map[int]int // descriptors of FIFOs and deleted files, by Object

	made    map[int]place   // late files that a process has opened
	watched map[int]bool    // epolls that have their interest lists
	owned   map[int]bool    // files that have their owner
	locked  map[int]bool    // files that have their locks
	highest int             // the highest number in an interest list
	scratch *events.Scratch // where unread events are made, once there are any
}

// place is where a description can be fetched from.
type place struct{ pidfd, number int }

// Open opens all files of a tree but sockets and the late ones, and all
// terminals, with the rights of this process. Close gives back what it holds.
func Open(files []*image.File, terminals []*image.Terminal, target Target) (*Opened, error) {
	o := &Opened{
		target: target, files: files, fd: make([]int, len(files)),
		pipes: map[int]*pipeEnds{}, objects: map[int]int{},
		made: map[int]place{}, watched: map[int]bool{}, owned: map[int]bool{}, locked: map[int]bool{},
	}
	for i := range o.fd {
		o.fd[i] = -1
	}
	err := o.openTerminals(terminals)
	if err == nil {
		err = o.openFiles()
	}
	if err == nil {
		err = o.finishTerminals()
	}
	if err == nil && target.Queues != nil {
		err = target.Queues.Finish()
	}
	o.closeParts()
	if err != nil {
		_ = o.Close()
		return nil, err
	}
	return o, nil
}

func (o *Opened) openFiles() error {
	for i, f := range o.files {
		for _, w := range f.Watches {
			o.highest = max(o.highest, w.Number)
		}
		k := kindOf(f.Kind)
		if k == nil {
			return fmt.Errorf("restore an open file: unknown kind %q", f.Kind)
		}
		if f.Socket != nil { // by processes
			continue
		}
		open := k.open
		if k.late() {
			if f.Kind != image.PIDFD || o.exists(f.PID) {
				continue
			}
			open = (*Opened).openEnded
		}
		fd, err := open(o, f)
		if err != nil {
			return fmt.Errorf("restore an open file (%s %s): %w", f.Kind, f.Path, err)
		}
		o.fd[i] = fd
	}
	return nil
}

func (o *Opened) exists(pid int) bool {
	return pid == 1 || pid > 1 && (o.target.Exists == nil || o.target.Exists(pid))
}

// Seal does what must come after the last opening or mapping of any file: it
// seals memfds, and takes leases.
func (o *Opened) Seal() error {
	sealed := map[int]bool{}
	for i, f := range o.files {
		if o.fd[i] < 0 {
			continue
		}
		if f.Kind == image.Memfd && f.Seals != 0 && !sealed[f.Object] {
			sealed[f.Object] = true
			if err := o.seal(i); err != nil {
				return err
			}
		}
		if err := o.lease(i); err != nil {
			return err
		}
	}
	return nil
}

// Finish does what comes when all batches of [Opened.Complete] have run. The pidfds
// of [Opened.OpenLate] must still be open: it adds the watches of inotify
// instances and their unread events, and locks terminals.
func (o *Opened) Finish() error {
	if err := o.lockTerminals(); err != nil {
		return err
	}
	for i, f := range o.files {
		if f.Kind != image.Inotify {
			continue
		}
		if err := o.watchFiles(i); err != nil {
			return err
		}
	}
	return nil
}

// shared returns the descriptor that stands for an object, which make makes
// when it is first asked for.
func (o *Opened) shared(f *image.File, make func(*image.File) (int, error)) (int, error) {
	fd, ok := o.objects[f.Object]
	if !ok {
		var err error
		if fd, err = make(f); err != nil {
			return -1, err
		}
		o.objects[f.Object] = fd
	}
	return fd, nil
}

// closeParts closes what was held to open the descriptions by.
func (o *Opened) closeParts() {
	for _, p := range o.pipes {
		p.close()
	}
	for _, fd := range o.objects {
		_ = unix.Close(fd)
	}
	o.pipes, o.objects = nil, nil
}

// FD is this process's descriptor of a file, by its index; -1 for a late one.
func (o *Opened) FD(file int) int { return o.fd[file] }

// Close closes everything that the caller has not taken. Call it when the
// processes have theirs: an end of a pipe held here hides an end of file.
func (o *Opened) Close() error {
	for i, fd := range o.fd {
		if fd >= 0 {
			_ = unix.Close(fd)
			o.fd[i] = -1
		}
	}
	for _, t := range o.terminals {
		t.close()
	}
	o.terminals = nil
	if o.scratch != nil {
		_ = o.scratch.Close()
		o.scratch = nil
	}
	return nil
}
