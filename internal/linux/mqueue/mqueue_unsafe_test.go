package mqueue_test

import (
	"fmt"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/mqueue"
)

func TestQueue(t *testing.T) {
	name, err := unix.BytePtrFromString(fmt.Sprintf("sandtree-test-%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	want := mqueue.Attr{MaxMessages: 3, MessageSize: 16}
	fd, _, e := unix.Syscall6(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(name)), unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o600,
		uintptr(unsafe.Pointer(&want)), 0, 0)
	if e != 0 {
		t.Fatal(e)
	}
	defer func() { _ = unix.Close(int(fd)) }()
	if _, _, e := unix.Syscall(unix.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(name)), 0, 0); e != 0 {
		t.Fatal(e)
	}
	for _, m := range []string{"low", "high", ""} {
		if err := mqueue.Send(int(fd), []byte(m), uint32(len(m))); err != nil {
			t.Fatal(err)
		}
	}
	if err := mqueue.Send(int(fd), []byte("one more"), 0); err != unix.EAGAIN {
		t.Errorf("a full queue: %v", err)
	}
	a, err := mqueue.GetAttr(int(fd))
	if want.Messages, want.Flags = 3, unix.O_NONBLOCK; err != nil || a != want {
		t.Errorf("%+v, %v", a, err)
	}
	buf := make([]byte, 16)
	for _, want := range []string{"high", "low", ""} {
		if n, p, err := mqueue.Receive(int(fd), buf); err != nil || string(buf[:n]) != want || p != uint32(len(want)) {
			t.Errorf("%q %d %v, want %q", buf[:n], p, err, want)
		}
	}
	if _, _, err := mqueue.Receive(int(fd), buf); err != unix.EAGAIN {
		t.Errorf("an empty queue: %v", err)
	}
	if _, err := mqueue.GetAttr(0); err == nil {
		t.Error("no queue has attributes")
	}
}
