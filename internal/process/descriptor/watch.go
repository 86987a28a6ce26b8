package descriptor

import (
	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// private are the bits of an entry's events that select no event
// (epoll_ctl(2)). A one-shot entry that has fired has no others.
const private = unix.EPOLLET | unix.EPOLLONESHOT | unix.EPOLLWAKEUP | unix.EPOLLEXCLUSIVE

func hasFired(w image.Watch) bool {
	return w.Events&unix.EPOLLONESHOT != 0 && w.Events&^uint32(private) == 0
}

// watch fills the interest list of an epoll, once, in the first process that
// has it. An entry carries the number that its file had when it was added.
func (w *completion) watch(d image.Descriptor, f *image.File) error {
	if len(f.Watches) == 0 || w.watched[d.File] {
		return nil
	}
	w.watched[d.File] = true
	// One-shot entries that have fired are made to fire again, while no other
	// entry is there whose event that could take.
	for _, fired := range []bool{true, false} {
		for _, e := range f.Watches {
			if hasFired(e) == fired {
				if err := w.room(); err != nil {
					return err
				}
				if err := w.addWatch(d.Number, e); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (w *completion) addWatch(epoll int, e image.Watch) error {
	target, have := w.numbers[e.File]
	if have {
		w.addAs(epoll, e, target, nil)
		return nil
	}
	fd, err := w.fetch(e.File)
	if err != nil {
		return err
	}
	w.receive(w.Control, fd, func(got tracee.Ref) {
		// The number it came under may be the one that is wanted.
		high := w.Batch.Call(unix.SYS_FCNTL, got, unix.F_DUPFD_CLOEXEC, w.Control+1)
		w.Batch.Call(unix.SYS_CLOSE, got)
		w.addAs(epoll, e, -1, &high)
		w.Batch.Call(unix.SYS_CLOSE, high)
	})
	return nil
}

// addAs adds an entry for a file that the process has under another number or
// as a result.
func (w *completion) addAs(epoll int, e image.Watch, number int, got *tracee.Ref) {
	var from any = number
	if got != nil {
		from = *got
	}
	there := -1 // what the process has under the entry's number
	cloexec := false
	if d, ok := w.entries[e.Number]; ok {
		there, cloexec = d.File, d.CloseOnExec
	}
	switch there {
	case e.File:
		w.add(epoll, e)
	case -1:
		w.Batch.Call(unix.SYS_DUP3, from, e.Number, unix.O_CLOEXEC)
		w.add(epoll, e)
		w.Batch.Call(unix.SYS_CLOSE, e.Number)
	default:
		saved := w.Batch.Call(unix.SYS_FCNTL, e.Number, unix.F_DUPFD_CLOEXEC, w.Control+1)
		w.Batch.Call(unix.SYS_DUP3, from, e.Number, unix.O_CLOEXEC)
		if e.Number == epoll {
			w.add(saved, e)
		} else {
			w.add(epoll, e)
		}
		w.Batch.Call(unix.SYS_DUP3, saved, e.Number, closeOnExecFlag(cloexec))
		w.Batch.Call(unix.SYS_CLOSE, saved)
	}
}

// add queues an entry for what the process has under the entry's number; epoll
// is a number or a result.
func (w *completion) add(epoll any, e image.Watch) {
	const event = unix.POLLIN | unix.POLLOUT | unix.POLLPRI | unix.POLLRDHUP
	fire := hasFired(e) && w.fd[e.File] >= 0 && ready(w.fd[e.File], event)
	events := e.Events
	if fire {
		events |= event
	}
	w.Batch.Call(unix.SYS_EPOLL_CTL, epoll, unix.EPOLL_CTL_ADD, e.Number, putEvent(w.Batch, events, e.Data))
	if fire {
		w.Batch.Call(unix.SYS_EPOLL_WAIT, epoll, w.Batch.Put(make([]byte, 16)), 1, 0)
	}
}
