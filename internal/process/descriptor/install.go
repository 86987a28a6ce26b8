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

// Installation is what a batch of [Opened.Install] or [Opened.Complete] needs
// besides.
type Installation struct {
	// Messages are descriptors to send to the process's control socket before
	// the batch runs, each list in a message of its own. They stay Opened's.
	Messages [][]int
	// Control is the number that the control socket has afterwards.
	Control int
	// Limit is the soft RLIMIT_NOFILE that the process must have meanwhile.
	Limit int
}

// installOperations is how many operations of a batch place a table of that
// many descriptors of that many files.
func installOperations(files, descriptors int) int { return 3*files + 2*descriptors + 16 }

// maxInstall is how many operations fit one batch, which keeps as many again
// free, with room for what its caller queues before.
const maxInstall = tracee.MaxOperations/2 - 128

// Install queues the calls with which a process takes its descriptors, except
// late ones. The process has its control socket under the given number, at
// most 64 descriptors, and needs none of the others any more: after the batch
// it has those of the table and the control socket, above them all, which the
// caller closes last.
func (o *Opened) Install(b *tracee.Batch, table []image.Descriptor, control int) (Installation, error) {
	var files []int // each once
	slot := map[int]int{}
	top := max(o.highest, control)
	for _, d := range table {
		top = max(top, d.Number)
		if _, ok := slot[d.File]; !ok && o.fd[d.File] >= 0 {
			slot[d.File] = len(files)
			files = append(files, d.File)
		}
	}
	// What is received takes the lowest free numbers: all below this.
	in := Installation{Control: max(top, len(files)+64) + 1}
	in.Limit = in.Control + 1 + len(files) + spareNumbers
	if b.Full(installOperations(len(files), len(table)), 8*len(files)+512) {
		return in, fault.New(fault.Exhausted, "%d descriptors are more than one batch can place", len(table))
	}
	hosts := make([]int, len(files))
	for i, f := range files {
		hosts[i] = o.fd[f]
	}
	first := in.Control + 1
	from := control
	in.Messages = receive(b, from, hosts, func(i int, got tracee.Ref) {
		b.Call(unix.SYS_DUP3, got, first+i, unix.O_CLOEXEC)
	})
	b.Call(unix.SYS_DUP3, control, in.Control, unix.O_CLOEXEC)
	b.Call(unix.SYS_CLOSE_RANGE, 0, in.Control-1, 0)
	for _, d := range table {
		if i, ok := slot[d.File]; ok {
			b.Call(unix.SYS_DUP3, first+i, d.Number, closeOnExecFlag(d.CloseOnExec))
		}
	}
	b.Call(unix.SYS_CLOSE_RANGE, first, uint32(1<<32-1), 0)
	return in, nil
}

// spareNumbers is how many numbers above its descriptors [Opened.Complete]
// uses at a time.
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
		return -1, fault.New(fault.Internal, "no process has opened %s yet", o.files[file].Path)
	}
	fd, err := unix.PidfdGetfd(p.pidfd, p.number, 0)
	if err != nil {
		return -1, fmt.Errorf("fetch %s: %w", o.files[file].Path, err)
	}
	o.fd[file] = fd
	return fd, nil
}
