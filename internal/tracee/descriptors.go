package tracee

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// msgControlSize is the space that n descriptors take in a control message
// (cmsg(3)).
func msgControlSize(n int) int { return unix.CmsgSpace(4 * n) }

// ReceiveFDs queues the receipt of n descriptors that were sent with the
// request. They take the lowest free numbers, in order. It must be the first
// call of its batch: a batch that ended before it would leave them in the
// socket.
func (b *Batch) ReceiveFDs(n int) Ref { return b.ReceiveFDsFrom(ControlFD, n) }

// ReceiveFDsFrom is ReceiveFDs from another socket of the target's.
func (b *Batch) ReceiveFDsFrom(sock any, n int) Ref {
	control := b.Put(make([]byte, msgControlSize(n)))
	return b.Call(unix.SYS_RECVMSG, sock, b.message(8, control, unix.CmsgLen(4*n)), 0)
}

// SendFDs queues the sending of descriptors, given by number or as results of
// earlier calls, to this side.
func (b *Batch) SendFDs(fds ...any) Ref {
	control := make([]byte, msgControlSize(len(fds)))
	binary.LittleEndian.PutUint64(control, uint64(unix.CmsgLen(4*len(fds))))
	binary.LittleEndian.PutUint32(control[8:], unix.SOL_SOCKET)
	binary.LittleEndian.PutUint32(control[12:], unix.SCM_RIGHTS)
	for i, f := range fds {
		if n, ok := f.(int); ok {
			binary.LittleEndian.PutUint32(control[16+4*i:], uint32(n))
		}
	}
	at := b.Put(control)
	for i, f := range fds {
		if r, ok := f.(Ref); ok {
			b.Store(at+Ptr(16+4*i), r, 4)
		}
	}
	minus := int32(sentFDs)
	return b.Call(unix.SYS_SENDMSG, ControlFD, b.messageOf(b.PutWords(uint64(uint32(minus))), 8, at, unix.CmsgLen(4*len(fds))), unix.MSG_NOSIGNAL)
}

// message stores a struct msghdr with one buffer of n bytes.
func (b *Batch) message(n int, control Ptr, controlLen int) Ptr {
	return b.messageOf(b.Put(make([]byte, n)), n, control, controlLen)
}

func (b *Batch) messageOf(buf Ptr, n int, control Ptr, controlLen int) Ptr {
	iov := b.PutWords(uint64(buf), uint64(n))
	return b.PutWords(0, 0, uint64(iov), 1, uint64(control), uint64(controlLen), 0)
}

// ReceiveFD queues the receipt of one descriptor over a socket of the target's,
// and returns a Ref to its number.
func (b *Batch) ReceiveFD(sock any) Ref {
	control := b.Put(make([]byte, msgControlSize(1)))
	b.Call(unix.SYS_RECVMSG, sock, b.message(8, control, unix.CmsgLen(4)), 0)
	return Ref(control + Ptr(unix.CmsgLen(0)))
}
