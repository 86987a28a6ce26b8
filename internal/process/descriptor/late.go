package descriptor

import (
	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// Opening says which process opens late files.
type Opening struct {
	Table []image.Descriptor
	// PIDFD must stay open until [Opened.Finish].
	PIDFD    int
	Terminal int // index of its controlling terminal, or -1
	Control  int // the number of its control socket, from [Opened.Install]
	PID      int // inside
	// Threads has it open those files that are of threads, once there are all; else all others.
	Threads bool
	// Other gives another process of the tree, by its number inside: what runs a batch in
	// it, and a pidfd, which the caller keeps.
	Other func(pid int) (run func(b *tracee.Batch) error, pidfd int, ok bool)
}

// OpensLate tells whether a table has files that a process has to open, see [Opened.OpenLate];
// threads says which ones.
func (o *Opened) OpensLate(table []image.Descriptor, threads bool) bool {
	for _, d := range table {
		if o.opensLate(o.files[d.File], threads) {
			return true
		}
	}
	return false
}

func (o *Opened) opensLate(f *image.File, threads bool) bool {
	return kindOf(f.Kind).late() && (f.Kind == image.ProcFile && o.ofThread(f.Path)) == threads
}

// OpenLate has a process open the files of its table that nobody else can open, or
// take them from a process that has, when all processes exist, have their sessions
// and controlling terminals, and have their descriptors. Its root must still be the
// sandbox's. All that have late files do so before the first is completed, since an
// epoll may watch what another process opens.
func (o *Opened) OpenLate(run func(Installation) error, of Opening) error {
	w := opening{Opened: o, Opening: of, installer: newInstaller(of.Control+1+spareNumbers, run), placed: map[int]int{}}
	for _, d := range of.Table {
		f := o.files[d.File]
		if !o.opensLate(f, of.Threads) {
			continue
		}
		if err := w.room(); err != nil {
			return err
		}
		if err := w.late(d, f); err != nil {
			return err
		}
	}
	return w.flush()
}

// opening is what one process does to have its late files.
type opening struct {
	*Opened
	Opening
	installer
	placed map[int]int // the first number of each that it has by now
}

// late gives the process a late file: it opens it, or gets what another
// process has opened.
func (w *opening) late(d image.Descriptor, f *image.File) error {
	_, made := w.made[d.File]
	if n, ok := w.placed[d.File]; ok {
		w.Batch.Call(unix.SYS_DUP3, n, d.Number, closeOnExecFlag(d.CloseOnExec))
		return nil
	}
	w.placed[d.File] = d.Number
	if f.Kind == image.CtlTTY && !made && w.fd[d.File] < 0 && f.Terminal != w.Terminal {
		// Nobody can open another session's terminal by that name.
		fd, err := reopen(w.Slave(f.Terminal), f.Flags)
		if err != nil {
			return err
		}
		w.fd[d.File] = fd
	}
	if f.Kind == image.ProcFile && !made && w.fd[d.File] < 0 {
		fd, err := openByOwner(w.Opening, f)
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
		w.receive(w.Control, fd, func(got tracee.Ref) { w.place(got, d) })
		return nil
	}
	if k, ok := kindOf(f.Kind).(insideKind); ok {
		w.place(k.openInside(w.Batch, f), d)
		w.made[d.File] = place{w.PIDFD, d.Number}
		return nil
	}
	got := openHere(w.Batch, f)
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

// place moves an open file, which may have any number, to a descriptor's.
func (w *opening) place(got tracee.Ref, d image.Descriptor) {
	high := w.Batch.Call(unix.SYS_FCNTL, got, unix.F_DUPFD_CLOEXEC, w.Control+1)
	w.Batch.Call(unix.SYS_CLOSE, got)
	w.Batch.Call(unix.SYS_DUP3, high, d.Number, closeOnExecFlag(d.CloseOnExec))
	w.Batch.Call(unix.SYS_CLOSE, high)
}
