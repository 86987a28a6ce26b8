package process

import (
	"bufio"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// What a process has of its own counts, what its child shares with it once, and nothing that a capture
// has seen.
func TestUnseenMemory(t *testing.T) {
	proc, err := unix.Open("/proc", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(proc)
	l := &Live{cfg: Config{Proc: proc}, buf: make([]byte, 1<<16), procs: map[int]*liveProcess{}}
	see := func() {
		pids, err := l.pids()
		if err != nil {
			t.Fatal(err)
		}
		for _, pid := range pids {
			l.procs[pid] = &liveProcess{pid: pid}
		}
	}
	see()
	cmd := exec.Command("python3", "-c", `
import os, sys
b = bytearray(64 << 20)
for i in range(0, len(b), 4096): b[i] = 1
for _ in range(3):
    if not os.fork(): sys.stdin.read(); os._exit(0)
print("ready", flush=True); sys.stdin.read()
for _ in range(3): os.wait()`)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close(); _ = cmd.Wait() }()
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	sum, err := l.unseen()
	if err != nil {
		t.Fatal(err)
	}
	if sum < 62<<20 { // others may have come, too
		t.Errorf("%d bytes, and the process has 64 MiB", sum)
	}
	see()
	before := sum
	if sum, err = l.unseen(); err != nil || sum > before-32<<20 {
		t.Errorf("%d bytes of %d after all were seen: %v", sum, before, err)
	}
}
