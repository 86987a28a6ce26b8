package mount

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestDetachedThenAttached(t *testing.T) {
	at := t.TempDir()
	fd, err := New("tmpfs").Set("source", "test").Set("mode", "0711").Mount(unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Mkdirat(fd, "dir", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Attach(fd, at); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(at)
	if err != nil || st.Mode().Perm() != 0o711 {
		t.Errorf("attached: %v %v", st, err)
	}
	sub, err := Clone(unix.AT_FDCWD, filepath.Join(at, "dir"))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(sub)
	if err := Unmount(at); !errors.Is(err, unix.EBUSY) { // fd is in use
		t.Errorf("unmount what is in use: %v", err)
	}
	if err := Detach(at); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(at, "dir")); !os.IsNotExist(err) {
		t.Errorf("still there after it was detached: %v", err)
	}
	// The clone lives on by its descriptor.
	if err := unix.Mkdirat(sub, "alive", 0o755); err != nil {
		t.Error(err)
	}
}

func TestErrorsNameTheCall(t *testing.T) {
	dir := t.TempDir()
	_, noType := New("no-such-fs").Set("a", "b").Mount(0)
	_, noOption := New("tmpfs").Set("no_such_option", "1").Mount(0)
	_, noLayers := New("overlay").Flag("volatile").Mount(0)
	_, noClone := Clone(unix.AT_FDCWD, filepath.Join(dir, "none"))
	_, noMap := CloneMapped(unix.AT_FDCWD, dir, 0, 0) // not a user namespace
	for _, c := range []struct {
		err   error
		errno error
		words []string
	}{
		{noType, unix.ENODEV, []string{"fsopen", "no-such-fs"}},
		{noOption, unix.EINVAL, []string{"fsconfig", "tmpfs", "no_such_option", "Unknown parameter"}},
		{noLayers, unix.EINVAL, []string{"fsconfig", "overlay", "create"}},
		{noClone, unix.ENOENT, []string{"open_tree", "none"}},
		{noMap, unix.EINVAL, []string{"mount_setattr", "idmap"}},
		{Unmount(dir), unix.EINVAL, []string{"umount2", dir}},
		{Detach(dir), unix.EINVAL, []string{"umount2", dir}},
	} {
		var e *Error
		if !errors.As(c.err, &e) || !errors.Is(c.err, c.errno) {
			t.Errorf("%v, want a mount error of %v", c.err, c.errno)
			continue
		}
		for _, w := range c.words {
			if !strings.Contains(c.err.Error(), w) {
				t.Errorf("%q does not say %q", c.err, w)
			}
		}
	}
}
