package sysv

import (
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/roottest"
)

// Objects of a namespace of the test's own are made, listed, read and set.
func TestObjects(t *testing.T) {
	roottest.Need(t, "a namespace")
	runtime.LockOSThread() // and the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWIPC); err != nil {
		t.Fatal(err)
	}
	if any, err := Any(); any || err != nil {
		t.Fatal(any, err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	make := func(nr uintptr, args ...uintptr) int {
		t.Helper()
		r, _, e := unix.Syscall(nr, args[0], args[1], args[2])
		if e != 0 {
			t.Fatal(e)
		}
		return int(r)
	}
	const create = unix.IPC_CREAT | unix.IPC_EXCL | 0o640
	must(SegmentObject.Next(7 << 15))
	seg := make(unix.SYS_SHMGET, 0x1234, 5000, create)
	must(SetObject.Next(3<<15 | 2))
	set := make(unix.SYS_SEMGET, 0, 3, create)
	queue := make(unix.SYS_MSGGET, 9, create, 0)
	if seg != 7<<15 || set != 3<<15|2 {
		t.Errorf("numbers %d and %d", seg, set)
	}
	if any, err := Any(); !any || err != nil {
		t.Error(any, err)
	}
	must(SegmentObject.SetPerm(Perm{ID: seg, UID: 5, GID: 6, Mode: 0o604}, 0))
	must(Lock(seg))
	segs, err := Segments()
	must(err)
	if want := []Segment{{Perm: Perm{ID: seg, Key: 0x1234, UID: 5, GID: 6, Mode: 0o604 | ModeLocked}, Size: 5000}}; !slices.Equal(segs, want) {
		t.Errorf("%+v, want %+v", segs, want)
	}
	fd, err := OpenSegment(seg, 5000, true)
	must(err)
	_, err = unix.Pwrite(fd, []byte("content"), 4000)
	must(err)
	must(unix.Close(fd))
	fd, err = OpenSegment(seg, 5000, false)
	must(err)
	var b [7]byte
	if _, err := unix.Pread(fd, b[:], 4000); err != nil || string(b[:]) != "content" {
		t.Errorf("%q %v", b, err)
	}
	must(unix.Close(fd))
	must(SetValues(set, []uint16{1, 2, 3}, true))
	sets, err := Sets()
	must(err)
	if len(sets) != 1 || sets[0].Semaphores != 3 || sets[0].Operated == 0 {
		t.Fatalf("%+v", sets)
	}
	if v, err := sets[0].Values(); err != nil || !slices.Equal(v, []uint16{1, 2, 3}) {
		t.Error(v, err)
	}
	must(QueueObject.SetPerm(Perm{ID: queue, Mode: 0o600}, 10_000))
	must(Send(queue, Message{Type: 5, Text: []byte("five")}))
	must(Send(queue, Message{Type: 1 << 40, Text: nil}))
	queues, err := Queues()
	must(err)
	if len(queues) != 1 || queues[0].Messages != 2 || queues[0].MaxBytes != 10_000 {
		t.Fatalf("%+v", queues)
	}
	for range 2 { // it stays
		if m, err := Peek(queue, 0, 100); err != nil || m.Type != 5 || string(m.Text) != "five" {
			t.Error(m, err)
		}
		if m, err := Peek(queue, 1, 100); err != nil || m.Type != 1<<40 || len(m.Text) != 0 {
			t.Error(m, err)
		}
	}
	must(QueueObject.Remove(queue))
	must(SetObject.Remove(set))
	must(SegmentObject.Remove(seg))
	if any, err := Any(); any || err != nil {
		t.Error(any, err)
	}
}
