package descriptor

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// Completion says for which process calls are queued.
type Completion struct {
	Table []image.Descriptor
	// PIDFD must stay open until [Opened.Finish].
	PIDFD    int
	Terminal int // index of its controlling terminal, or -1
	Control  int // the number of its control socket, from [Opened.Install]
}

// Complete queues what a process does when all processes exist, have their
// sessions and controlling terminals, and have run the batches of Install: it
// opens late files, fills epoll interest lists, sets owners and takes locks. Its root must
// still be the sandbox's. The batch of one process must have run before
// Complete is called for the next.
func (o *Opened) Complete(b *tracee.Batch, c Completion) (Installation, error) {
	in := Installation{Control: c.Control, Limit: c.Control + 1 + spareNumbers}
	w := completion{Opened: o, Completion: c, b: b}
	for _, d := range c.Table {
		if b.Full(64, 4096) {
			return in, fault.New(fault.Exhausted, "%d descriptors are more than one batch can complete", len(c.Table))
		}
		f := o.files[d.File]
		if k := kindOf(f.Kind); k.late() {
			if err := w.late(d, f); err != nil {
				return in, err
			}
		}
	}
	for _, d := range c.Table {
		if err := w.watch(d, o.files[d.File]); err != nil {
			return in, err
		}
		w.owner(d, o.files[d.File])
	}
	w.locks()
	in.Messages = w.messages
	return in, nil
}

// completion is the batch of one process.
type completion struct {
	*Opened
	Completion
	b        *tracee.Batch
	messages [][]int
	placed   map[int]bool // late files that it has by now
}

// late gives the process a late file: it opens it, or gets what another
// process has opened.
func (w *completion) late(d image.Descriptor, f *image.File) error {
	_, made := w.made[d.File]
	if n, ok := w.placedAt(d.File); ok {
		w.b.Call(unix.SYS_DUP3, n, d.Number, closeOnExecFlag(d.CloseOnExec))
		return nil
	}
	if w.placed == nil {
		w.placed = map[int]bool{}
	}
	w.placed[d.File] = true
	if f.Kind == image.CtlTTY && !made && w.fd[d.File] < 0 && f.Terminal != w.Terminal {
		// Nobody can open another session's terminal by that name.
		fd, err := reopen(w.Slave(f.Terminal), f.Flags)
		if err != nil {
			return err
		}
		w.fd[d.File] = fd
	}
	if made || w.fd[d.File] >= 0 {
		fd, err := w.fetch(d.File)
		if err != nil {
			return err
		}
		w.receive(fd, func(got tracee.Ref) { w.place(got, d) })
		return nil
	}
	if k, ok := kindOf(f.Kind).(insideKind); ok {
		w.place(k.openInside(w.b, f), d)
		w.made[d.File] = place{w.PIDFD, d.Number}
		return nil
	}
	got := w.b.Call(unix.SYS_OPEN, f.Path, f.Flags&(reopenable|unix.O_NOFOLLOW)|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	w.place(got, d)
	if f.Flags&unix.O_PATH == 0 {
		if f.Flags&unix.O_ASYNC != 0 {
			w.b.Call(unix.SYS_FCNTL, d.Number, unix.F_SETFL, f.Flags&settable)
		}
		if f.Pos != 0 {
			w.b.Call(unix.SYS_LSEEK, d.Number, f.Pos, unix.SEEK_SET)
		}
	}
	w.made[d.File] = place{w.PIDFD, d.Number}
	return nil
}

// placedAt is the number under which the process has a file by now.
func (w *completion) placedAt(file int) (int, bool) {
	if kindOf(w.files[file].Kind).late() && !w.placed[file] {
		return 0, false
	}
	for _, d := range w.Table {
		if d.File == file {
			return d.Number, true
		}
	}
	return 0, false
}

// place moves an open file, which may have any number, to a descriptor's.
func (w *completion) place(got tracee.Ref, d image.Descriptor) {
	high := w.b.Call(unix.SYS_FCNTL, got, unix.F_DUPFD_CLOEXEC, w.Control+1)
	w.b.Call(unix.SYS_CLOSE, got)
	w.b.Call(unix.SYS_DUP3, high, d.Number, closeOnExecFlag(d.CloseOnExec))
	w.b.Call(unix.SYS_CLOSE, high)
}

func (w *completion) receive(fd int, f func(got tracee.Ref)) {
	m := receive(w.b, w.Control, []int{fd}, func(_ int, got tracee.Ref) { f(got) })
	w.messages = append(w.messages, m...)
}

// owner sets who gets a description's signals. The kernel notes the rights of
// the caller, so the process does it itself.
func (w *completion) owner(d image.Descriptor, f *image.File) {
	if f.Owner == 0 || w.owned[d.File] {
		return
	}
	w.owned[d.File] = true
	p := binary.LittleEndian.AppendUint32(nil, uint32(f.OwnerType))
	at := w.b.Put(binary.LittleEndian.AppendUint32(p, uint32(f.Owner)))
	w.b.Call(unix.SYS_FCNTL, d.Number, unix.F_SETOWN_EX, at)
	if f.OwnerSignal != 0 {
		w.b.Call(unix.SYS_FCNTL, d.Number, unix.F_SETSIG, f.OwnerSignal)
	}
}
