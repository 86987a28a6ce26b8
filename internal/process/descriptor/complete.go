package descriptor

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// Completion says which process is completed.
type Completion struct {
	Table   []image.Descriptor
	Control int // the number of its control socket, from [Opened.Install]
}

// Complete has a process do what it does when all processes have their descriptors,
// late ones too (see [Opened.OpenLate]): it fills epoll interest lists, sets owners and
// takes locks.
func (o *Opened) Complete(run func(Installation) error, c Completion) error {
	w := completion{Opened: o, Completion: c, installer: newInstaller(c.Control+1+spareNumbers, run)}
	w.numbers, w.entries = make(map[int]int, len(c.Table)), make(map[int]image.Descriptor, len(c.Table))
	for _, d := range c.Table {
		w.entries[d.Number] = d
		if _, ok := w.numbers[d.File]; !ok {
			w.numbers[d.File] = d.Number
		}
	}
	for _, d := range c.Table {
		if err := w.room(); err != nil {
			return err
		}
		if err := w.watch(d, o.files[d.File]); err != nil {
			return err
		}
		w.owner(d, o.files[d.File])
	}
	if err := w.locks(); err != nil {
		return err
	}
	return w.flush()
}

// completion is what one process does.
type completion struct {
	*Opened
	Completion
	installer
	numbers map[int]int              // the first of each file
	entries map[int]image.Descriptor // by number
}

// owner sets who gets a description's signals. The kernel notes the rights of
// the caller, so the process does it itself.
func (w *completion) owner(d image.Descriptor, f *image.File) {
	if f.Owner == 0 && f.OwnerSignal == 0 || w.owned[d.File] {
		return
	}
	w.owned[d.File] = true
	queueOwner(w.Batch, d.Number, f)
}

// queueOwner queues that a process sets who gets the signals of a descriptor: a number or a result.
func queueOwner(b *tracee.Batch, number any, f *image.File) {
	if f.OwnerSignal != 0 {
		b.Call(unix.SYS_FCNTL, number, unix.F_SETSIG, f.OwnerSignal)
	}
	if f.Owner == 0 {
		return
	}
	p := binary.LittleEndian.AppendUint32(nil, uint32(f.OwnerType))
	at := b.Put(binary.LittleEndian.AppendUint32(p, uint32(f.Owner)))
	b.Call(unix.SYS_FCNTL, number, unix.F_SETOWN_EX, at)
}
