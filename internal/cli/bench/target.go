package bench

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// TargetCommand is the hidden command that runs [Target].
const TargetCommand = "bench-target"

// target is a process that holds a heap and forks when told so.
type target struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	heap uint64 // its address
}

func startTarget(heapBytes int64) (*target, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	t := &target{cmd: exec.Command(self, TargetCommand, fmt.Sprint(heapBytes))}
	t.cmd.Stderr = os.Stderr
	if t.in, err = t.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := t.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	t.out = bufio.NewReader(out)
	if err := t.cmd.Start(); err != nil {
		return nil, err
	}
	if _, err := fmt.Fscan(t.out, &t.heap); err != nil {
		t.close()
		return nil, fmt.Errorf("target: %w", err)
	}
	return t, nil
}

func (t *target) pid() int { return t.cmd.Process.Pid }

// fork makes the target fork once, and returns the time until the child had
// lived and ended.
func (t *target) fork() (time.Duration, error) {
	if _, err := io.WriteString(t.in, "fork\n"); err != nil {
		return 0, err
	}
	var ns int64
	if _, err := fmt.Fscan(t.out, &ns); err != nil {
		return 0, err
	}
	if ns <= 0 {
		return 0, fmt.Errorf("fork of the target: errno %d", -ns)
	}
	return time.Duration(ns), nil
}

func (t *target) close() {
	_ = t.in.Close()
	_ = t.cmd.Wait()
}

// Target is the process that the floors read and fork. It maps a heap in huge
// pages where the kernel gives them, writes its address, and for each line of
// in forks once and writes how many nanoseconds that took, or a negative
// errno.
func Target(heapBytes int, in io.Reader, out io.Writer) error {
	heap, err := unix.Mmap(-1, 0, heapBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return fmt.Errorf("map %d bytes: %w", heapBytes, err)
	}
	_ = unix.Madvise(heap, unix.MADV_HUGEPAGE)
	for i := 0; i < len(heap); i += os.Getpagesize() {
		heap[i] = 1
	}
	if _, err := fmt.Fprintln(out, address(heap)); err != nil {
		return err
	}
	for lines := bufio.NewScanner(in); lines.Scan(); {
		if _, err := fmt.Fprintln(out, forkOnceNS()); err != nil {
			return err
		}
	}
	runtime.KeepAlive(heap)
	return nil
}

// forkOnceNS forks a child that ends at once and waits for it. The child is a
// copy of one thread of a Go program, so it does nothing but end.
func forkOnceNS() int64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	begin := time.Now()
	pid, _, errno := unix.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return -int64(errno)
	}
	if pid == 0 {
		for {
			_, _, _ = unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
	for {
		if _, err := unix.Wait4(int(pid), nil, 0, nil); err != unix.EINTR { //nolint:errorlint // an errno
			break
		}
	}
	return time.Since(begin).Nanoseconds()
}
