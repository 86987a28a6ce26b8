// Package mqueue looks into POSIX message queues (mq_overview(7)) by their
// descriptors.
package mqueue

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Attr is struct mq_attr of the kernel: flags (O_NONBLOCK of the description), how many
// messages of which size there may be, and how many there are.
type Attr struct {
	Flags, MaxMessages, MessageSize, Messages int64
	_                                         [4]int64
}

// GetAttr reads a queue's attributes.
func GetAttr(fd int) (a Attr, err error) {
	if _, _, e := unix.Syscall(unix.SYS_MQ_GETSETATTR, uintptr(fd), 0, uintptr(unsafe.Pointer(&a))); e != 0 {
		return a, e
	}
	return a, nil
}

// Receive takes the oldest message of the highest priority. EAGAIN from a description
// with O_NONBLOCK means that there is none.
func Receive(fd int, buf []byte) (n int, priority uint32, err error) {
	r, _, e := unix.Syscall6(unix.SYS_MQ_TIMEDRECEIVE, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(buf))), uintptr(len(buf)),
		uintptr(unsafe.Pointer(&priority)), 0, 0)
	if e != 0 {
		return 0, 0, e
	}
	return int(r), priority, nil
}

// Send adds a message.
func Send(fd int, text []byte, priority uint32) error {
	_, _, e := unix.Syscall6(unix.SYS_MQ_TIMEDSEND, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(text))), uintptr(len(text)), uintptr(priority), 0, 0)
	if e != 0 {
		return e
	}
	return nil
}
