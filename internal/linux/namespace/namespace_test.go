package namespace_test

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/namespace"
)

func TestOpenAndID(t *testing.T) {
	for _, k := range namespace.Kinds {
		fd, err := namespace.Open(os.Getpid(), k)
		if err != nil {
			t.Error(err)
			continue
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			t.Error(err)
		}
		unix.Close(fd)
		if id, err := namespace.ID(os.Getpid(), k); err != nil || id != st.Ino {
			t.Errorf("%s: id %d (%v), the file's inode is %d", k, id, err, st.Ino)
		}
	}
	if _, err := namespace.Open(os.Getpid(), "no such kind"); !errors.Is(err, unix.ENOENT) {
		t.Errorf("a kind that does not exist: %v", err)
	}
}

func TestIDMap(t *testing.T) {
	m := namespace.IDMap{Base: 1000, Count: 10}
	for id, want := range map[uint32]int{999: namespace.Overflow, 1000: 0, 1009: 9, 1010: namespace.Overflow, 0: namespace.Overflow} {
		if got := m.Inside(id); got != want {
			t.Errorf("Inside(%d) = %d, want %d", id, got, want)
		}
	}
	if id, err := m.Outside(9); err != nil || id != 1009 {
		t.Errorf("Outside(9) = %d, %v", id, err)
	}
	for _, id := range []int{-1, 10, 1 << 40} {
		if _, err := m.Outside(id); err == nil {
			t.Errorf("Outside(%d) has no error", id)
		}
	}
}

func TestOwnNamespacesCannotBeChanged(t *testing.T) {
	if err := (namespace.IDMap{Count: 1}).Write(os.Getpid()); err == nil {
		t.Error("the initial user namespace's map was written again")
	}
	if err := namespace.SetClocks(os.Getpid(), time.Second, -time.Second/2); err == nil {
		t.Error("the initial time namespace got offsets")
	}
}
