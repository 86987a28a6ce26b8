package memory

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/tracee"
)

// Whoever looks at a zygote's arguments, as ps(1) does, leaves the stacks in it as they are:
// also one that lies just above the place where the zygote's own was.
func TestLooksLeaveStacksAlone(t *testing.T) {
	seed := newSeed(t)
	arguments := argStart(t, seed.PID())
	z, err := NewZygote(seed)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Kill()
	b := tracee.NewBatch()
	b.Call(unix.SYS_MMAP, arguments&^(pageSize-1)+1<<20, pageSize, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED_NOREPLACE|unix.MAP_GROWSDOWN, -1, 0)
	if err := z.server.Do(b); err != nil {
		t.Fatal(err)
	}
	was, err := readFile(z.server.PID(), "maps")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"cmdline", "environ"} {
		if text, err := readFile(z.server.PID(), name); err != nil || len(text) > 0 {
			t.Errorf("%s is %q (%v)", name, text, err)
		}
	}
	if is, err := readFile(z.server.PID(), "maps"); err != nil || !bytes.Equal(was, is) {
		t.Errorf("%v: maps were\n%sand are\n%s", err, was, is)
	}
}

// argStart is where a process's arguments begin: field 48 (proc_pid_stat(5)).
func argStart(t *testing.T, pid int) uint64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	at, err := strconv.ParseUint(strings.Fields(string(text[bytes.LastIndexByte(text, ')'):]))[48-2], 10, 64)
	if err != nil || at == 0 {
		t.Fatalf("no place of the arguments (%v) in %s", err, text)
	}
	return at
}
