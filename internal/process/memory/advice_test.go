package memory

import (
	"runtime"
	"testing"

	"github.com/sandtree/sandtree/internal/linux/ptrace"
	"github.com/sandtree/sandtree/internal/process/image"
)

// advised maps memory, and gives advice on it later.
const advised = `
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
a = libc.mmap(None, 64 * 4096, 1, 0x22, -1, 0)
print('ready', flush=True)
line = sys.stdin.readline()
assert libc.madvise(a, 64 * 4096, 10) == 0 # MADV_DONTFORK
print('done', flush=True)
sys.stdin.readline()
`

// Between a mapping and the advice on it there may be a stop: maps are then the same at the
// next, and the advice is not.
func TestAdviceAfterAStop(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	g := startProgram(t, "python3", "-c", advised)
	advised := func() (n int) {
		t.Helper()
		for _, soon := range []bool{true, false} {
			if err := g.tr.Prepare(soon); err != nil {
				t.Fatal(err)
			}
		}
		if err := stop(g.tr); err != nil {
			t.Fatal(err)
		}
		for _, v := range g.tr.VMAs() {
			if v.Advice&image.DontFork != 0 && v.Kind == image.Anonymous {
				n++
			}
		}
		if err := ptrace.Detach(g.cmd.Process.Pid, 0); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := advised(); n != 0 {
		t.Errorf("%d mappings have the advice before it was given", n)
	}
	g.step()
	if n := advised(); n != 1 {
		t.Errorf("%d mappings have the advice after it was given", n)
	}
}
