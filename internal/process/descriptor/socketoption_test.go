package descriptor

import (
	"testing"

	"golang.org/x/sys/unix"
)

// An option whose size is another one than is written here would be left out without a word.
func TestOptionsHaveTheSizeOfTheKernel(t *testing.T) {
	for _, of := range []socketType{
		{unix.AF_UNIX, unix.SOCK_STREAM, 0}, {unix.AF_UNIX, unix.SOCK_DGRAM, 0},
		{unix.AF_INET, unix.SOCK_STREAM, 0}, {unix.AF_INET6, unix.SOCK_STREAM, 0},
		{unix.AF_INET, unix.SOCK_DGRAM, 0}, {unix.AF_INET6, unix.SOCK_DGRAM, 0},
		{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE},
	} {
		fd, err := unix.Socket(of.domain, of.typ|unix.SOCK_CLOEXEC, of.protocol)
		if err != nil {
			t.Fatal(err)
		}
		var b [256]byte
		for _, o := range optionsOf(of) {
			if n, err := getOption(fd, o.level, o.name, b[:]); err == nil && o.size != 0 && n != o.size {
				t.Errorf("option %d/%d of a socket of %v has %d bytes, not %d", o.level, o.name, of, n, o.size)
			}
		}
		_ = unix.Close(fd)
	}
}
