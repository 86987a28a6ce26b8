package descriptor

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// The runtime interrupts threads by SIGURG when it wants them.
func TestPollIsInterrupted(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer closePair(p)
	pid, tid := unix.Getpid(), unix.Gettid()
	go func() {
		for range 1000 {
			_ = unix.Tgkill(pid, tid, unix.SIGURG)
		}
		_, _ = unix.Write(p[1], []byte{1})
	}()
	if n, err := poll([]unix.PollFd{{Fd: int32(p[0]), Events: unix.POLLIN}}, -1); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}
