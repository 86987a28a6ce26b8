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

func TestOwnNamespacesCannotBeChanged(t *testing.T) {
	if err := namespace.WriteIDMaps(os.Getpid(), "0 0 1\n", "0 0 1\n"); err == nil {
		t.Error("the initial user namespace's map was written again")
	}
	if err := namespace.SetClocks(os.Getpid(), time.Second, -time.Second/2); err == nil {
		t.Error("the initial time namespace got offsets")
	}
}
