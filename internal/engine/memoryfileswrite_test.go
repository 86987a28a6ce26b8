package engine

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A node without a device, which everybody may make (mknod(2), Linux 5.8), takes the place of what a new
// sandbox has there. The rights of a link's target are the host's.
func TestNodesTakeThePlaceOfLinks(t *testing.T) {
	root := t.TempDir()
	victim, dev := filepath.Join(root, "victim"), filepath.Join(root, "dev")
	for _, err := range []error{os.WriteFile(victim, nil, 0o600), os.Mkdir(dev, 0o755), os.Symlink(victim, filepath.Join(dev, "stdin"))} {
		if err != nil {
			t.Fatal(err)
		}
	}
	fd, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	m := newMemoryFiles()
	e := memoryFile{path: "stdin", data: -1}
	e.stat.Mode = unix.S_IFCHR | 0o777
	m.dev.entries = []memoryFile{e}
	if err := m.write(fd); err != nil {
		t.Error(err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(dev, "stdin"), &st); err != nil || st.Mode != e.stat.Mode || st.Rdev != 0 {
		t.Errorf("it is of mode %#o, device %#x, %v", st.Mode, st.Rdev, err)
	}
	if err := unix.Lstat(victim, &st); err != nil || st.Mode != unix.S_IFREG|0o600 {
		t.Errorf("the file of the host is of mode %#o, %v", st.Mode, err)
	}
}
