package descriptor

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// Completion says which process is completed.
type Completion struct {
	Table []image.Descriptor
	// PIDFD must stay open until [Opened.Finish].
	PIDFD    int
	Terminal int // index of its controlling terminal, or -1
	Control  int // the number of its control socket, from [Opened.Install]
	PID      int // inside
	// Other gives another process of the tree, by its number inside: what runs a batch in
	// it, and a pidfd, which the caller keeps.
	Other func(pid int) (run func(b *tracee.Batch) error, pidfd int, ok bool)
}

// Complete has a process do what it does when all processes exist, have their
// sessions and controlling terminals, and have their descriptors: it opens late
// files, fills epoll interest lists, sets owners and takes locks. Its root must
// still be the sandbox's.
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
		f := o.files[d.File]
		if !kindOf(f.Kind).late() {
			continue
		}
		if err := w.room(); err != nil {
			return err
		}
		if err := w.late(d, f); err != nil {
			return err
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
	placed  map[int]bool             // late files that it has by now
	numbers map[int]int              // the first of each file
	entries map[int]image.Descriptor // by number
}

// late gives the process a late file: it opens it, or gets what another
// process has opened.
func (w *completion) late(d image.Descriptor, f *image.File) error {
	_, made := w.made[d.File]
	if n, ok := w.placedAt(d.File); ok {
		w.Batch.Call(unix.SYS_DUP3, n, d.Number, closeOnExecFlag(d.CloseOnExec))
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
	if f.Kind == image.ProcFile && !made && w.fd[d.File] < 0 {
		fd, err := openByOwner(w.Completion, f)
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
		w.place(k.openInside(w.Batch, f), d)
		w.made[d.File] = place{w.PIDFD, d.Number}
		return nil
	}
	got := w.Batch.Call(unix.SYS_OPEN, f.Path, f.Flags&(reopenable|unix.O_NOFOLLOW)|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	w.place(got, d)
	if f.Flags&unix.O_PATH == 0 {
		if f.Flags&unix.O_ASYNC != 0 {
			w.Batch.Call(unix.SYS_FCNTL, d.Number, unix.F_SETFL, f.Flags&settable)
		}
		if f.Pos != 0 {
			w.Batch.Call(unix.SYS_LSEEK, d.Number, f.Pos, unix.SEEK_SET)
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
	n, ok := w.numbers[file]
	return n, ok
}

// place moves an open file, which may have any number, to a descriptor's.
func (w *completion) place(got tracee.Ref, d image.Descriptor) {
	high := w.Batch.Call(unix.SYS_FCNTL, got, unix.F_DUPFD_CLOEXEC, w.Control+1)
	w.Batch.Call(unix.SYS_CLOSE, got)
	w.Batch.Call(unix.SYS_DUP3, high, d.Number, closeOnExecFlag(d.CloseOnExec))
	w.Batch.Call(unix.SYS_CLOSE, high)
}

func (w *completion) receive(fd int, f func(got tracee.Ref)) {
	m := receive(w.Batch, w.Control, []int{fd}, func(_ int, got tracee.Ref) { f(got) })
	w.Messages = append(w.Messages, m...)
}

// owner sets who gets a description's signals. The kernel notes the rights of
// the caller, so the process does it itself.
func (w *completion) owner(d image.Descriptor, f *image.File) {
	if f.Owner == 0 && f.OwnerSignal == 0 || w.owned[d.File] {
		return
	}
	w.owned[d.File] = true
	if f.OwnerSignal != 0 {
		w.Batch.Call(unix.SYS_FCNTL, d.Number, unix.F_SETSIG, f.OwnerSignal)
	}
	if f.Owner == 0 {
		return
	}
	p := binary.LittleEndian.AppendUint32(nil, uint32(f.OwnerType))
	at := w.Batch.Put(binary.LittleEndian.AppendUint32(p, uint32(f.Owner)))
	w.Batch.Call(unix.SYS_FCNTL, d.Number, unix.F_SETOWN_EX, at)
}
