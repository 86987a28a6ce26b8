package descriptor

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// maxMessage is how many descriptors one message carries (SCM_MAX_FD,
// unix(7)).
const maxMessage = 253

// MostMessages is how many messages a process is sent before the batch that receives them: a
// socket holds only so many (net.core.wmem_default, 278 of them by default), and nobody
// receives before.
const MostMessages = 64

// Installation is a batch of [Opened.Install], [Opened.OpenLate] or
// [Opened.Complete], with what it needs besides.
type Installation struct {
	Batch *tracee.Batch
	// Messages are descriptors to send to the process's control socket before
	// the batch runs, each list in a message of its own, [MostMessages] at most. They
	// stay Opened's.
	Messages [][]int
	// Limit is the soft RLIMIT_NOFILE that the process must have meanwhile.
	Limit int
}

// installer runs batches in one process, as many as it takes.
type installer struct {
	Installation
	run func(Installation) error
}

func newInstaller(limit int, run func(Installation) error) installer {
	return installer{Installation{Batch: tracee.NewBatch(), Limit: limit}, run}
}

// room runs what is queued if there is little room for more: a few calls with
// a few hundred bytes.
func (in *installer) room() error {
	return in.roomFor(64, 4096)
}

// roomFor runs what is queued if there is no room for so many calls with so many bytes, or for
// another message.
func (in *installer) roomFor(calls, size int) error {
	if !in.Batch.Full(calls, size) && len(in.Messages) < MostMessages {
		return nil
	}
	return in.flush()
}

func (in *installer) flush() error {
	if in.Batch.Len() == 0 {
		return nil
	}
	err := in.run(in.Installation)
	in.Batch, in.Messages = tracee.NewBatch(), nil
	return err
}

// receive queues the receipt of one descriptor through the control socket.
func (in *installer) receive(control, fd int, f func(got tracee.Ref)) {
	in.Messages = append(in.Messages, receive(in.Batch, control, []int{fd}, func(_ int, got tracee.Ref) { f(got) })...)
}

// Install has a process take its descriptors, except late ones, by batches that
// run runs in it. The process has its control socket under the given number, at
// most 64 descriptors, and needs none of the others any more: afterwards it has
// those of the table and the control socket, above them all, whose new number
// is returned, and which the caller closes last.
func (o *Opened) Install(run func(Installation) error, table []image.Descriptor, control int) (int, error) {
	var hosts []int // of each file once
	slot := map[int]int{}
	top := max(o.highest, control)
	for _, d := range table {
		top = max(top, d.Number)
		if _, ok := slot[d.File]; !ok && o.fd[d.File] >= 0 {
			slot[d.File] = len(hosts)
			hosts = append(hosts, o.fd[d.File])
		}
	}
	// What is received takes the lowest free numbers: all below this.
	up := max(top, len(hosts)+64) + 1
	first := up + 1
	in := newInstaller(first+len(hosts)+spareNumbers, run)
	for at := 0; at < len(hosts); at += maxMessage {
		if err := in.roomFor(2*maxMessage, 8*maxMessage); err != nil {
			return 0, err
		}
		b := in.Batch
		part := hosts[at:min(at+maxMessage, len(hosts))]
		in.Messages = append(in.Messages, receive(b, control, part, func(i int, got tracee.Ref) {
			b.Call(unix.SYS_DUP3, got, first+at+i, unix.O_CLOEXEC)
		})...)
	}
	if err := in.room(); err != nil {
		return 0, err
	}
	in.Batch.Call(unix.SYS_DUP3, control, up, unix.O_CLOEXEC)
	in.Batch.Call(unix.SYS_CLOSE_RANGE, 0, up-1, 0)
	for _, d := range table {
		if err := in.room(); err != nil {
			return 0, err
		}
		if i, ok := slot[d.File]; ok {
			in.Batch.Call(unix.SYS_DUP3, first+i, d.Number, closeOnExecFlag(d.CloseOnExec))
		}
	}
	in.Batch.Call(unix.SYS_CLOSE_RANGE, first, uint32(1<<32-1), 0)
	return up, in.flush()
}

// spareNumbers is how many numbers above its descriptors [Opened.OpenLate] and
// [Opened.Complete] use at a time.
const spareNumbers = 4

func closeOnExecFlag(on bool) int {
	if on {
		return unix.O_CLOEXEC
	}
	return 0
}

// receive queues the receipt of descriptors, in as many messages as it takes,
// and calls f for each, which queues what is to be done with it.
func receive(b *tracee.Batch, control int, fds []int, f func(i int, got tracee.Ref)) (messages [][]int) {
	for at := 0; at < len(fds); at += maxMessage {
		part := fds[at:min(at+maxMessage, len(fds))]
		messages = append(messages, part)
		// Numbers that did not come stay -1, so that using them fails. A
		// result is copied with eight bytes; calls look at four of a
		// descriptor.
		buf := make([]byte, unix.CmsgSpace(4*len(part))+8)
		for i := range buf {
			buf[i] = 0xff
		}
		ctl := b.Put(buf)
		iov := b.PutWords(uint64(b.Put(make([]byte, 8))), 8)
		msg := b.PutWords(0, 0, uint64(iov), 1, uint64(ctl), uint64(unix.CmsgLen(4*len(part))), 0)
		b.Call(unix.SYS_RECVMSG, control, msg, unix.MSG_CMSG_CLOEXEC)
		for i := range part {
			f(at+i, tracee.Ref(uint64(ctl)+uint64(unix.CmsgLen(0))+4*uint64(i)))
		}
	}
	return messages
}

// putEvent stores a struct epoll_event.
func putEvent(b *tracee.Batch, events uint32, data uint64) tracee.Ptr {
	e := binary.LittleEndian.AppendUint32(nil, events)
	return b.Put(binary.LittleEndian.AppendUint64(e, data))
}

// fetch makes a late file that some process has opened available here.
func (o *Opened) fetch(file int) (int, error) {
	if o.fd[file] >= 0 {
		return o.fd[file], nil
	}
	p, ok := o.made[file]
	if !ok {
		return -1, fault.New(fault.Internal, "no process has opened %s yet", titleOf(o.files[file]))
	}
	fd, err := unix.PidfdGetfd(p.pidfd, p.number, 0)
	if err != nil {
		return -1, fmt.Errorf("fetch %s: %w", titleOf(o.files[file]), err)
	}
	o.fd[file] = fd
	return fd, nil
}

// titleOf names a file in errors: most kinds have no path.
func titleOf(f *image.File) string {
	switch {
	case f.Path != "":
		return fmt.Sprintf("the %s %s", f.Kind, f.Path)
	case f.Kind == image.PIDFD:
		return fmt.Sprintf("the %s of process %d", f.Kind, f.PID)
	}
	return fmt.Sprintf("the %s", f.Kind)
}
