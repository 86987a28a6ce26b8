package numbered_test

import (
	"context"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/mount"
	"github.com/sandtree/sandtree/internal/linux/numbered"
)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// counting is the root of a file system that counts, from 2 on.
func counting(t *testing.T) int {
	t.Helper()
	fd, err := mount.New("tmpfs").Set("mode", "755").Mount(0)
	check(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func TestFilesHaveTheirNumbers(t *testing.T) {
	dir := counting(t)
	files := []numbered.File{
		{Ino: 9, Mode: unix.S_IFDIR}, {Ino: 2, Mode: unix.S_IFREG}, {Ino: 700, Mode: unix.S_IFLNK, Link: "to"},
		{Ino: 3, Mode: unix.S_IFIFO}, {Ino: 701 + numbered.MaxPassed, Mode: unix.S_IFREG},
	}
	made, err := numbered.Make(t.Context(), dir, files)
	check(t, err)
	for i, f := range files {
		name := string(rune('a' + i))
		ok, err := made.Place(f.Ino, dir, name)
		check(t, err)
		if !ok {
			if i != 4 {
				t.Errorf("file %d was not made", f.Ino)
			}
			continue
		}
		var st unix.Stat_t
		check(t, unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW))
		if st.Ino != f.Ino || st.Mode&unix.S_IFMT != f.Mode {
			t.Errorf("file %d is file %d, mode %#o", f.Ino, st.Ino, st.Mode)
		}
	}
	if ok, err := made.Place(9, dir, "again"); ok || err != nil {
		t.Errorf("placed twice: %v, %v", ok, err)
	}
	nothingElse(t, dir, 4)
}

// nothingElse checks how many names a directory has.
func nothingElse(t *testing.T, dir, n int) {
	t.Helper()
	fd, err := unix.Openat(dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	check(t, err)
	f := os.NewFile(uintptr(fd), "dir")
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil || len(names) != n {
		t.Errorf("%v %v, want %d", names, err, n)
	}
}

// Numbers that are given out already cannot be had.
func TestNumbersThatAreTaken(t *testing.T) {
	dir := counting(t)
	for _, name := range []string{"a", "b", "c"} {
		check(t, unix.Mknodat(dir, name, unix.S_IFREG|0o600, 0))
	}
	made, err := numbered.Make(t.Context(), dir, []numbered.File{{Ino: 0, Mode: unix.S_IFREG}, {Ino: 3, Mode: unix.S_IFREG}, {Ino: 6, Mode: unix.S_IFREG}})
	check(t, err)
	for ino, want := range map[uint64]bool{0: false, 3: false, 6: true} {
		if ok, err := made.Place(ino, dir, "x"); ok != want || err != nil {
			t.Errorf("file %d: %v, %v", ino, ok, err)
		}
	}
	nothingElse(t, dir, 4)
	if made, err := numbered.Make(t.Context(), dir, nil); err != nil || made == nil {
		t.Errorf("none: %v", err)
	}
}

func TestCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := numbered.Make(ctx, counting(t), []numbered.File{{Ino: 2, Mode: unix.S_IFREG}}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
