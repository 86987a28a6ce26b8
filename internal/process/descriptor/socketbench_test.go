package descriptor

import (
	"testing"

	"golang.org/x/sys/unix"
)

// BenchmarkReadOptions is what the options of one socket cost in a stop.
func BenchmarkReadOptions(b *testing.B) {
	for _, t := range []socketType{{unix.AF_UNIX, unix.SOCK_STREAM, 0}, {unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_TCP}, {unix.AF_INET6, unix.SOCK_STREAM, unix.IPPROTO_TCP}} {
		b.Run(map[int]string{unix.AF_UNIX: "unix", unix.AF_INET: "tcp", unix.AF_INET6: "tcp6"}[t.domain], func(b *testing.B) {
			fd, err := unix.Socket(t.domain, t.typ, t.protocol)
			if err != nil {
				b.Fatal(err)
			}
			defer unix.Close(fd)
			for b.Loop() {
				if _, err := readOptions(fd, t, true); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
