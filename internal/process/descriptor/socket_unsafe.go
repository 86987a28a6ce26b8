package descriptor

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// getOption reads an option of any type into b and returns its length.
func getOption(fd, level, name int, b []byte) (int, error) {
	n := uint32(len(b))
	_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name),
		uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(unsafe.Pointer(&n)), 0)
	if e != 0 {
		return 0, e
	}
	return min(int(n), len(b)), nil
}

func setOption(fd, level, name int, b []byte) error {
	_, _, e := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), uintptr(level), uintptr(name),
		uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), 0)
	if e != 0 {
		return e
	}
	return nil
}

// addressFrom is the address that getsockname(2) or getpeername(2) gives, nil
// if it is none but a family.
func addressFrom(fd int, call uintptr) ([]byte, error) {
	var b [128]byte // struct sockaddr_storage
	n := uint32(len(b))
	if _, _, e := unix.Syscall(call, uintptr(fd), uintptr(unsafe.Pointer(&b)), uintptr(unsafe.Pointer(&n))); e != 0 {
		return nil, e
	}
	if n <= 2 {
		return nil, nil
	}
	return append([]byte(nil), b[:min(int(n), len(b))]...), nil
}

func bindTo(fd int, address []byte) error { return withAddress(unix.SYS_BIND, fd, address) }

func connectTo(fd int, address []byte) error { return withAddress(unix.SYS_CONNECT, fd, address) }

func withAddress(call uintptr, fd int, address []byte) error {
	if _, _, e := unix.Syscall(call, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(address))), uintptr(len(address))); e != 0 {
		return e
	}
	return nil
}

// envelope is what a message has beside its data.
type envelope struct {
	from    []byte
	control []byte
	flags   int
}

// receiveMessage is recvmsg(2) into data; the envelope's buffers are used as
// far as they reach and cut to what came.
func receiveMessage(fd int, data []byte, e *envelope, flags int) (int, error) {
	var one byte
	v := unix.Iovec{Base: &one}
	if len(data) > 0 {
		v.Base = &data[0]
	}
	v.SetLen(len(data))
	h := unix.Msghdr{Iov: &v, Iovlen: 1}
	if len(e.from) > 0 {
		h.Name, h.Namelen = &e.from[0], uint32(len(e.from))
	}
	if len(e.control) > 0 {
		h.Control = &e.control[0]
		h.SetControllen(len(e.control))
	}
	n, _, errno := unix.Syscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&h)), uintptr(flags))
	if errno != 0 {
		return 0, errno
	}
	e.from, e.control, e.flags = e.from[:min(int(h.Namelen), len(e.from))], e.control[:h.Controllen], int(h.Flags)
	return int(n), nil
}

// sendMessage is sendmsg(2).
func sendMessage(fd int, data, to, control []byte, flags int) (int, error) {
	v := unix.Iovec{Base: unsafe.SliceData(data)}
	v.SetLen(len(data))
	h := unix.Msghdr{Iov: &v, Iovlen: 1}
	if len(to) > 0 {
		h.Name, h.Namelen = &to[0], uint32(len(to))
	}
	if len(control) > 0 {
		h.Control = &control[0]
		h.SetControllen(len(control))
	}
	n, _, errno := unix.Syscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&h)), uintptr(flags))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// faultingPeek peeks n bytes into memory whose last byte is on a page that
// nobody may access. It returns how many bytes came before the message that
// would not fit.
func faultingPeek(fd, n int) (int, error) {
	const page = 4096
	room := (n + page - 1) &^ (page - 1)
	m, err := unix.Mmap(-1, 0, room+page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return 0, err
	}
	defer func() { _ = unix.Munmap(m) }()
	if err := unix.Mprotect(m[room:], unix.PROT_NONE); err != nil {
		return 0, err
	}
	got, _, errno := unix.Syscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&m[room-(n-1)])), uintptr(n),
		unix.MSG_PEEK|unix.MSG_DONTWAIT, 0, 0)
	if errno == unix.EFAULT {
		return 0, nil
	}
	if errno != 0 {
		return 0, errno
	}
	return int(got), nil
}

// filterOf returns the classic BPF program that a socket filters what it
// receives by, as struct sock_filter, nil if there is none (SO_GET_FILTER).
func filterOf(fd int) ([]byte, error) {
	var n uint32 // counts instructions
	_, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_GET_FILTER, 0, uintptr(unsafe.Pointer(&n)), 0)
	if e != 0 || n == 0 {
		return nil, errno(e)
	}
	b := make([]byte, unix.SizeofSockFilter*int(n))
	_, _, e = unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_GET_FILTER,
		uintptr(unsafe.Pointer(&b[0])), uintptr(unsafe.Pointer(&n)), 0)
	return b, errno(e)
}

// attachFilter is SO_ATTACH_FILTER.
func attachFilter(fd int, program []byte) error {
	f := unix.SockFprog{Len: uint16(len(program) / unix.SizeofSockFilter), Filter: (*unix.SockFilter)(unsafe.Pointer(&program[0]))}
	_, _, e := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		uintptr(unsafe.Pointer(&f)), unsafe.Sizeof(f), 0)
	return errno(e)
}

func errno(e unix.Errno) error {
	if e != 0 {
		return e
	}
	return nil
}
