// Package tcprepair reads and makes TCP connections without a packet being sent
// (TCP_REPAIR of linux/tcp.h, 3.5), and reads what the kernel knows of them
// (tcp(7), TCP_INFO). It needs CAP_NET_ADMIN in the socket's network namespace.
package tcprepair

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// Queue is one of a connection's two queues.
type Queue int

// The queues (TCP_RECV_QUEUE, TCP_SEND_QUEUE).
const (
	Receive Queue = 1
	Send    Queue = 2

	noQueue = 0
)

const offWithoutProbe = -1 // TCP_REPAIR_OFF_NO_WP, 4.19

// Enter switches repair on. What is sent then goes to a queue and not to the
// other end. The socket's SO_REUSEADDR is lost by it, which [Leave] needs.
func Enter(fd int) (reuse int, err error) {
	if reuse, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR); err != nil {
		return 0, fmt.Errorf("SO_REUSEADDR: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, 1); err != nil {
		return 0, fmt.Errorf("TCP_REPAIR: %w", err)
	}
	return reuse, nil
}

// Leave switches repair off, without a packet, and SO_REUSEADDR to what it was.
func Leave(fd, reuse int) error {
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR, offWithoutProbe); err != nil {
		return fmt.Errorf("TCP_REPAIR off: %w", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, reuse); err != nil {
		return fmt.Errorf("SO_REUSEADDR: %w", err)
	}
	return nil
}

// use chooses the queue that calls work on.
func use(fd int, q Queue) error {
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR_QUEUE, int(q)); err != nil {
		return fmt.Errorf("TCP_REPAIR_QUEUE %d: %w", q, err)
	}
	return nil
}

// Sequence is the number of the next byte of a queue: to be received, or to be
// written. The socket is in repair.
func Sequence(fd int, q Queue) (uint32, error) {
	if err := use(fd, q); err != nil {
		return 0, err
	}
	n, err := unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUEUE_SEQ)
	if err == nil {
		err = use(fd, noQueue)
	}
	if err != nil {
		return 0, fmt.Errorf("TCP_QUEUE_SEQ: %w", err)
	}
	return uint32(n), nil
}

// SetSequence sets it, of a socket that is not connected yet.
func SetSequence(fd int, q Queue, n uint32) error {
	if err := use(fd, q); err != nil {
		return err
	}
	if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_QUEUE_SEQ, int(int32(n))); err != nil {
		return fmt.Errorf("TCP_QUEUE_SEQ: %w", err)
	}
	return use(fd, noQueue)
}

// Unacknowledged reads into b what was written and not acknowledged, sent or
// not. The socket is in repair.
func Unacknowledged(fd int, b []byte) (int, error) {
	if err := use(fd, Send); err != nil {
		return 0, err
	}
	n, _, err := unix.Recvfrom(fd, b, unix.MSG_PEEK|unix.MSG_DONTWAIT)
	if e := use(fd, noQueue); err == nil {
		err = e
	}
	if err != nil {
		return 0, fmt.Errorf("read the send queue: %w", err)
	}
	return n, nil
}

// PutReceived puts data into the receive queue, in parts that a socket takes.
// The socket is connected, and in repair.
func PutReceived(fd int, data []byte) error {
	const part = 16 << 10
	if err := use(fd, Receive); err != nil {
		return err
	}
	for len(data) > 0 {
		n, err := unix.SendmsgN(fd, data[:min(part, len(data))], nil, nil, unix.MSG_DONTWAIT)
		if err != nil {
			return fmt.Errorf("fill the receive queue: %w", err)
		}
		data = data[n:]
	}
	return use(fd, noQueue)
}

// Window is struct tcp_repair_window (4.8).
type Window struct {
	SendUpdate, Send, Max, Receive, ReceiveUpdate uint32
}

// SetWindow sets the windows of a connected socket in repair.
func SetWindow(fd int, w Window) error {
	var b []byte
	for _, v := range []uint32{w.SendUpdate, w.Send, w.Max, w.Receive, w.ReceiveUpdate} {
		b = binary.NativeEndian.AppendUint32(b, v)
	}
	if err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR_WINDOW, string(b)); err != nil {
		return fmt.Errorf("TCP_REPAIR_WINDOW: %w", err)
	}
	return nil
}

// Agreed is what the two ends of a connection have agreed on at its start, from
// the view of one.
type Agreed struct {
	Timestamps, SelectiveAcks, Scaled bool
	SendScale, ReceiveScale           uint8
	// SegmentSize is the largest that the other end takes.
	SegmentSize uint32
}

// SetAgreed sets that of a connected socket in repair.
func SetAgreed(fd int, a Agreed) error {
	const ( // TCPOPT_ of net/tcp.h
		segmentSize   = 2
		window        = 3
		selectiveAcks = 4
		timestamp     = 8
	)
	var b []byte
	add := func(code, value uint32) {
		b = binary.NativeEndian.AppendUint32(b, code)
		b = binary.NativeEndian.AppendUint32(b, value)
	}
	if a.SegmentSize > 0 {
		add(segmentSize, a.SegmentSize)
	}
	if a.Scaled {
		add(window, uint32(a.SendScale)|uint32(a.ReceiveScale)<<16)
	}
	if a.SelectiveAcks {
		add(selectiveAcks, 0)
	}
	if a.Timestamps {
		add(timestamp, 0)
	}
	if len(b) == 0 {
		return nil
	}
	if err := unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_REPAIR_OPTIONS, string(b)); err != nil {
		return fmt.Errorf("TCP_REPAIR_OPTIONS: %w", err)
	}
	return nil
}
