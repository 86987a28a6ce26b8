package engine

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/sandbox"
)

// Who sets the time of /dev to that of a new one has nodes missing all the same.
func TestMissingDevicesAreSeenWhateverTheTime(t *testing.T) {
	root := t.TempDir()
	dev := filepath.Join(root, "dev")
	if err := os.Mkdir(dev, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, dev, []unix.Timespec{sandbox.DevMade, sandbox.DevMade}, 0); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	m := newMemoryFiles()
	if err := m.dev.in(fd, func(dir int) error { return m.dev.readChanged(dir, 0) }); err != nil {
		t.Fatal(err)
	}
	if len(m.dev.entries) != len(sandbox.Devices()) {
		t.Errorf("%d of %d are missing", len(m.dev.entries), len(sandbox.Devices()))
	}
}
