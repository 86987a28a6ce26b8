package descriptor

import (
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// kind is one kind of open file description. To add one, write its file and
// list it in kinds.
type kind interface {
	// name is what image.File.Kind says.
	name() image.FileKind
	// claims reports whether a description is of this kind. Kinds are asked
	// in the order of the list, and the first that claims it has it.
	claims(c *Capturer, d *description) bool
	// examine fills in everything of d.file that can be had without touching
	// the live file, and refuses what cannot be restored with c.refuse. All
	// descriptions are known by then, and claimed.
	examine(c *Capturer, d *description) error
	// read captures content, after all files were examined. The live file
	// must be the same afterwards.
	read(c *Capturer, d *description) error
	// open makes a description like the captured one and returns it with
	// FD_CLOEXEC. It is not called for late kinds.
	open(o *Opened, f *image.File) (int, error)
	// late kinds are opened by a process that has the descriptor, when all
	// processes exist.
	late() bool
}

// insideKind are late kinds that are not opened by their path.
type insideKind interface {
	// openInside queues what makes a description like the captured one, and
	// returns its number.
	openInside(b *tracee.Batch, f *image.File) tracee.Ref
}

// kinds are all kinds, in the order in which they are asked.
var kinds = []kind{
	procFile{}, // before pathOnly: places in /proc are opened by processes
	pathOnly{},
	messageQueue{},
	regular{},
	directory{},
	session{},
	pipe{},
	fifo{},
	ctlTTY{},
	ptySlave{},
	ptyMaster{},
	device{},
	eventfd{},
	epoll{},
	timerfd{},
	signalfd{},
	memfd{},
	pidfd{},
	socket{},
	inotify{},
}

func kindOf(name image.FileKind) kind {
	for _, k := range kinds {
		if k.name() == name {
			return k
		}
	}
	return nil
}

// simple has what most kinds need: no content, not late.
type simple struct{}

func (simple) read(*Capturer, *description) error { return nil }
func (simple) late() bool                         { return false }
