package memory

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/ptrace"
)

// locker maps a file, of which it has read nothing, and later locks it into memory.
const locker = `
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.mlock.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
f = open(sys.argv[1], 'rb')
a = libc.mmap(None, 64 * 4096, 3, 2, f.fileno(), 0)
ctypes.memset(a, 1, 1)
print('ready', flush=True)
for line in sys.stdin:
    assert libc.mlock(a, 64 * 4096) == 0
    assert ctypes.string_at(a + 4096, 63 * 4096) == b'f' * (63 * 4096)
    print('done', flush=True)
`

// A program may lock a mapping whose file is not in the page cache after writes to it
// have come to be tracked.
func TestTrackedMappingsOfFilesCanBeLocked(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// Not a tmpfs: its pages are always there.
	dir, err := os.MkdirTemp("/var/tmp", "sandtree-locked-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "mapped")
	if err := os.WriteFile(path, bytes.Repeat([]byte("f"), 64*pageSize), 0o600); err != nil {
		t.Fatal(err)
	}
	g := startProgram(t, "python3", "-c", locker, path)
	if err := stop(g.tr); err != nil {
		t.Fatal(err)
	}
	if err := g.tr.Scan(&g.delta); err != nil {
		t.Fatal(err)
	}
	if err := ptrace.Detach(g.cmd.Process.Pid, 0); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	// In an endless fault the program ends by SIGKILL alone.
	late := time.AfterFunc(30*time.Second, func() { _ = g.cmd.Process.Kill() })
	defer late.Stop()
	g.step()
}
