package descriptor

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

// Options that golang.org/x/sys does not name (asm-generic/socket.h).
const (
	soPassPIDFD  = 76 // SO_PASSPIDFD, 6.5
	soPassRights = 83 // SO_PASSRIGHTS, 6.16
)

// option is one that is kept. Asking costs a microsecond of the stop for each
// and each socket, so those of rare use are left out.
type option struct {
	level, name, size int // a size of 0 is any
	use               use
}

// use is when an option matters.
type use int

const (
	always use = iota
	early      // it is set before the socket has an address
	fresh      // early, and without a meaning once it is connected
)

// general are options of every family but unix (socket(7)).
var general = []option{
	{unix.SOL_SOCKET, unix.SO_REUSEADDR, 4, early},
	{unix.SOL_SOCKET, unix.SO_REUSEPORT, 4, early},
	{unix.SOL_SOCKET, unix.SO_MARK, 4, early},
	{unix.SOL_SOCKET, unix.SO_BINDTODEVICE, 0, early},
	{unix.SOL_SOCKET, unix.SO_PRIORITY, 4, always},
	{unix.SOL_SOCKET, unix.SO_RCVLOWAT, 4, always},
	{unix.SOL_SOCKET, unix.SO_RCVTIMEO, 16, always},
	{unix.SOL_SOCKET, unix.SO_SNDTIMEO, 16, always},
	{unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, 8, always},
	{unix.SOL_SOCKET, unix.SO_ZEROCOPY, 4, always},
}

// ofUnix are those of unix sockets.
var ofUnix = []option{
	{unix.SOL_SOCKET, unix.SO_PASSCRED, 4, always},
	{unix.SOL_SOCKET, unix.SO_PASSSEC, 4, always},
	{unix.SOL_SOCKET, soPassPIDFD, 4, always},
	{unix.SOL_SOCKET, soPassRights, 4, always},
	{unix.SOL_SOCKET, unix.SO_TIMESTAMP, 4, always},
	{unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 4, always},
	{unix.SOL_SOCKET, unix.SO_RCVLOWAT, 4, always},
	{unix.SOL_SOCKET, unix.SO_RCVTIMEO, 16, always},
	{unix.SOL_SOCKET, unix.SO_SNDTIMEO, 16, always},
}

// ofStreams are those of TCP, ofDatagrams those of UDP and netlink.
var ofStreams = []option{
	{unix.SOL_SOCKET, unix.SO_KEEPALIVE, 4, always},
	{unix.SOL_SOCKET, unix.SO_OOBINLINE, 4, always},
	{unix.SOL_SOCKET, unix.SO_LINGER, 8, always},
}

var ofDatagrams = []option{
	{unix.SOL_SOCKET, unix.SO_BROADCAST, 4, always},
	{unix.SOL_SOCKET, unix.SO_DONTROUTE, 4, always},
	{unix.SOL_SOCKET, unix.SO_NO_CHECK, 4, always},
	{unix.SOL_SOCKET, unix.SO_PASSCRED, 4, always},
	{unix.SOL_SOCKET, unix.SO_RXQ_OVFL, 4, always},
	{unix.SOL_SOCKET, unix.SO_TIMESTAMP, 4, always},
	{unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 4, always},
	{unix.SOL_SOCKET, unix.SO_TIMESTAMPING, 8, always},
}

// last are options that would be in the way of putting unread data back.
var last = []option{
	{unix.SOL_SOCKET, unix.SO_SNDBUF, 4, always},
	{unix.SOL_SOCKET, unix.SO_RCVBUF, 4, always},
	{unix.SOL_SOCKET, unix.SO_BUF_LOCK, 4, always},
	{unix.SOL_SOCKET, unix.SO_PEEK_OFF, 4, always},
}

// socketType is what socket(2) is told.
type socketType struct{ domain, typ, protocol int }

// optionsOf are the options that are kept of a type of socket, in the order in
// which they are set.
func optionsOf(t socketType) (all []option) {
	if t.domain == unix.AF_UNIX {
		return append(append(all, ofUnix...), last...)
	}
	all = append(all, general...)
	if t.typ == unix.SOCK_STREAM {
		all = append(all, ofStreams...)
	} else {
		all = append(all, ofDatagrams...)
	}
	switch t.domain {
	case unix.AF_INET, unix.AF_INET6:
		all = append(all, internetOptions(t)...)
	case unix.AF_NETLINK:
		all = append(all, netlinkOptions...)
	}
	return append(all, last...)
}

// defaultValue is an option with the value of a new socket.
type defaultValue struct {
	option
	value []byte
}

// newSocketValues are the defaults by type, found out once for each.
var newSocketValues sync.Map // of socketType to []defaultValue

// defaultsOf asks a new socket of this process's own. Options that it does not
// know are left out.
func defaultsOf(t socketType) ([]defaultValue, error) {
	if v, ok := newSocketValues.Load(t); ok {
		return v.([]defaultValue), nil
	}
	fd, err := unix.Socket(t.domain, t.typ|unix.SOCK_CLOEXEC, t.protocol)
	if err != nil {
		return nil, fmt.Errorf("make a socket to compare with: %w", err)
	}
	defer unix.Close(fd)
	var all []defaultValue
	var b [256]byte
	for _, o := range optionsOf(t) {
		n, err := getOption(fd, o.level, o.name, b[:])
		if err == nil && (o.size == 0 || n == o.size) {
			all = append(all, defaultValue{o, append([]byte(nil), b[:n]...)})
		}
	}
	newSocketValues.Store(t, all)
	return all, nil
}

// readOptions returns the options of a socket that are not as in a new one.
// Of a connected one, those that have no meaning any more are left out.
func readOptions(fd int, t socketType, connected bool) (out []image.SocketOption, err error) {
	all, err := defaultsOf(t)
	if err != nil {
		return nil, err
	}
	var b [256]byte
	for i := range all {
		o := &all[i]
		if connected && o.use == fresh {
			continue
		}
		n, err := getOption(fd, o.level, o.name, b[:])
		if err != nil || bytes.Equal(b[:n], o.value) {
			continue // some cannot be asked in every state
		}
		out = append(out, image.SocketOption{Level: o.level, Name: o.name, Value: append([]byte(nil), b[:n]...)})
	}
	return out, nil
}

// setOptions sets the captured options of a socket: those that must be set
// before it has an address, or the others.
func setOptions(fd int, s *image.Socket, before bool) error {
	order := optionsOf(socketType{s.Domain, s.Type, s.Protocol})
	for _, o := range order {
		for i := range s.Options {
			v := &s.Options[i]
			if (o.use != always) != before || v.Level != o.level || v.Name != o.name {
				continue
			}
			if err := restoreOption(fd, v); err != nil {
				return fmt.Errorf("set option %d/%d of a socket: %w", v.Level, v.Name, err)
			}
		}
	}
	return nil
}

// restoreOption sets an option to what getsockopt(2) has said.
func restoreOption(fd int, v *image.SocketOption) error {
	if v.Level != unix.SOL_SOCKET {
		return setOption(fd, v.Level, v.Name, v.Value)
	}
	switch v.Name {
	case unix.SO_SNDBUF, unix.SO_RCVBUF:
		// The kernel doubles what it is told (socket(7)), and bounds it but for
		// root.
		name := unix.SO_SNDBUFFORCE
		if v.Name == unix.SO_RCVBUF {
			name = unix.SO_RCVBUFFORCE
		}
		return unix.SetsockoptInt(fd, unix.SOL_SOCKET, name, int(word(v.Value))/2)
	case unix.SO_LINGER:
		// A time that is not in use is kept, but only set with one that is.
		if on := binary.NativeEndian.AppendUint32(nil, 1); len(v.Value) == 8 && word(v.Value) == 0 {
			if err := setOption(fd, v.Level, v.Name, append(on, v.Value[4:]...)); err != nil {
				return err
			}
		}
	}
	return setOption(fd, v.Level, v.Name, v.Value)
}

// restoreBuffers sets which sizes of buffers the kernel leaves alone. Setting a
// size says so too.
func restoreBuffers(fd int, s *image.Socket) error {
	sized, locked := false, 0
	for i := range s.Options {
		v := &s.Options[i]
		if v.Level != unix.SOL_SOCKET {
			continue
		}
		switch v.Name {
		case unix.SO_SNDBUF, unix.SO_RCVBUF:
			sized = true
		case unix.SO_BUF_LOCK:
			locked = int(word(v.Value))
		}
	}
	if !sized {
		return nil
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BUF_LOCK, locked); err != nil && err != unix.ENOPROTOOPT { // Linux 5.16
		return fmt.Errorf("SO_BUF_LOCK: %w", err)
	}
	return nil
}

func word(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}
