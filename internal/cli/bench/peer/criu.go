package peer

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// criu is CRIU, installed or unpacked.
type criu struct {
	argv []string // what starts it
	cfg  Config
}

// findCRIU takes the unpacked one if it is there: distributions have older
// ones that refuse newer kernels. It is started through the loader that was
// unpacked with it.
func findCRIU(ctx context.Context, cfg Config) (measure, error) {
	lib := filepath.Join(cfg.Cache, "criu/usr/lib/x86_64-linux-gnu")
	c := &criu{cfg: cfg, argv: []string{filepath.Join(lib, "ld-linux-x86-64.so.2"), "--library-path", lib, filepath.Join(cfg.Cache, "criu/usr/sbin/criu")}}
	if _, err := os.Stat(c.argv[0]); err != nil {
		installed, err := exec.LookPath("criu")
		if err != nil {
			return nil, ErrAbsent
		}
		c.argv = []string{installed}
	}
	if err := run(ctx, append(c.argv, "check")...); err != nil {
		return nil, err
	}
	return c.measure, nil
}

// heapProgram has a heap of as many bytes as its argument says, and goes on
// counting in a file, so that it can be seen to live.
const heapProgram = `
import sys, time
heap = bytearray(int(sys.argv[1]))
heap[::4096] = b"\1" * len(range(0, len(heap), 4096))
print("ready", flush=True)
for n in range(100_000):  # it ends by itself if nobody ends it
    with open(sys.argv[2], "w") as f:
        f.write(str(n))
    time.sleep(0.01)
`

func (c *criu) measure(ctx context.Context) ([]Figure, error) {
	dir := filepath.Join(c.cfg.Scratch, "criu")
	images := filepath.Join(dir, "images")
	if err := os.MkdirAll(images, 0o700); err != nil {
		return nil, err
	}
	count := filepath.Join(dir, "count")
	program, pid, err := startProgram(c.cfg.HeapBytes, dir, count)
	if err != nil {
		return nil, err
	}
	defer func() { _ = program.Process.Kill(); _ = program.Wait() }()
	dump := append(c.argv[:len(c.argv):len(c.argv)], "dump", "--tree", strconv.Itoa(pid), "--images-dir", images, "--log-file", "dump.log")
	n := max(c.cfg.N/10, 3)
	dumped, err := times(n, timed(ctx, append(dump, "--leave-running")...))
	if err != nil {
		return nil, withLog(err, filepath.Join(images, "dump.log"))
	}
	// What was restored becomes this program's child, to be waited for: its
	// number is wanted again.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, err
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) }()
	restore := append(c.argv[:len(c.argv):len(c.argv)], "restore", "--images-dir", images, "--log-file", "restore.log", "--restore-detached")
	// The first dump to be restored ends the program; each later round ends
	// what was restored.
	if err := run(ctx, dump...); err != nil {
		return nil, withLog(err, filepath.Join(images, "dump.log"))
	}
	_ = program.Wait()
	restored, err := times(n, func() (time.Duration, error) {
		before, _ := os.ReadFile(count)
		begin := time.Now()
		err := run(ctx, restore...)
		took := time.Since(begin)
		if err == nil {
			defer func() { _ = killAndWait(pid) }()
			err = counts(ctx, count, string(before))
		}
		return took, err
	})
	if err != nil {
		return nil, withLog(err, filepath.Join(images, "restore.log"))
	}
	what := fmt.Sprintf("a python with a heap of %d MB", c.cfg.HeapBytes>>20)
	return []Figure{
		{"criu_dump", "dump " + what + " and let it go on; no files", dumped},
		{"criu_restore", "restore it", restored},
	}, nil
}

// startProgram starts heapProgram in a session of its own, without terminal
// or pipes, which CRIU could not restore.
func startProgram(heap int64, dir, count string) (*exec.Cmd, int, error) {
	out, err := os.OpenFile(filepath.Join(dir, "out"), os.O_CREATE|os.O_RDWR|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, 0, err
	}
	defer out.Close()
	cmd := exec.Command("python3", "-c", heapProgram, strconv.FormatInt(heap, 10), count)
	cmd.Stdout, cmd.Stderr, cmd.Dir = out, out, dir
	// No signal at the parent's death: CRIU would restore that, and end.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, 0, err
	}
	for range 2000 {
		if text, err := os.ReadFile(count); err == nil && len(text) > 0 {
			return cmd, cmd.Process.Pid, nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	return nil, 0, fmt.Errorf("the program with the heap does not begin")
}

// counts waits until a restored program has counted on.
func counts(ctx context.Context, count, before string) error {
	for range 2000 {
		if now, err := os.ReadFile(count); err == nil && len(now) > 0 && string(now) != before {
			return nil
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return fmt.Errorf("the restored program does not go on")
}

// killAndWait ends a process that was restored, and returns when its number is
// free.
func killAndWait(pid int) error {
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		return err
	}
	for {
		if _, err := unix.Wait4(pid, nil, 0, nil); err != unix.EINTR { //nolint:errorlint // an errno
			return err
		}
	}
}

// withLog adds the errors of CRIU's log to an error.
func withLog(err error, log string) error {
	f, openErr := os.Open(log)
	if openErr != nil {
		return err
	}
	defer f.Close()
	var last string
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if strings.Contains(lines.Text(), "Error") && !strings.Contains(lines.Text(), "rlimit") { // that is a warning
			last = lines.Text()
			break
		}
	}
	return fmt.Errorf("%w (%s)", err, last)
}
