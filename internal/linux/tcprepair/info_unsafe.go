package tcprepair

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Info is what is used here of struct tcp_info (linux/tcp.h).
type Info struct {
	State int // net/tcp_states.h
	// Agreed but for SegmentSize, which the other end knows: its Advertised.
	Agreed     Agreed
	Advertised uint32
	// Waiting and Backlog are a listening socket's.
	Waiting, Backlog int
	// Quiet is how long ago the last acknowledgement came, in milliseconds.
	Quiet uint32
	// RoundTrip is 0 if the connection never came about.
	RoundTrip uint32
	// Sent is how many bytes were sent (4.19).
	Sent uint64
	// SendWindow and ReceiveWindow are known if HasWindows (6.2).
	SendWindow, ReceiveWindow uint32
	HasWindows                bool
}

// Get reads it.
func Get(fd int) (Info, error) {
	var b [256]byte
	n := uint32(len(b))
	_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.IPPROTO_TCP, unix.TCP_INFO,
		uintptr(unsafe.Pointer(&b)), uintptr(unsafe.Pointer(&n)), 0)
	if e != 0 {
		return Info{}, fmt.Errorf("TCP_INFO: %w", e)
	}
	word := func(at int) uint32 { return binary.NativeEndian.Uint32(b[at:]) }
	const sendWindow, receiveWindow = 228, 232
	return Info{
		State: int(b[0]),
		Agreed: Agreed{
			Timestamps: b[5]&1 != 0, SelectiveAcks: b[5]&2 != 0, Scaled: b[5]&4 != 0,
			SendScale: b[6] & 15, ReceiveScale: b[6] >> 4,
		},
		Waiting: int(word(24)), Backlog: int(word(28)),
		Quiet: word(56), RoundTrip: word(68), Sent: binary.NativeEndian.Uint64(b[200:]), Advertised: word(84),
		SendWindow: word(sendWindow), ReceiveWindow: word(receiveWindow), HasWindows: n >= receiveWindow+4,
	}, nil
}
