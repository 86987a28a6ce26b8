package bench

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
)

// WorkCommand is the hidden command that runs [Work].
const WorkCommand = "bench-work"

// Sizes of the work: about a second of what builds and tests do.
const (
	workFiles     = 1500
	workFileBytes = 6 << 10
	workProcesses = 40
	workHeap      = 64 << 20
)

// Work does what builds and tests do: it makes, reads, renames and deletes
// files below a directory, starts processes, touches memory and computes. The
// processes it starts are itself, with no directory, and do nothing.
func Work(dir string) error {
	if dir == "" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	name := func(i int) string { return filepath.Join(dir, strconv.Itoa(i%50), strconv.Itoa(i)) }
	content := bytes.Repeat([]byte("line of a source file\n"), workFileBytes/22)
	for i := range workFiles {
		if i < 50 {
			if err := os.MkdirAll(filepath.Dir(name(i)), 0o755); err != nil {
				return err
			}
		}
		if err := os.WriteFile(name(i)+".new", content, 0o644); err != nil {
			return err
		}
		if err := os.Rename(name(i)+".new", name(i)); err != nil {
			return err
		}
	}
	sum := sha256.New()
	for i := range workFiles {
		b, err := os.ReadFile(name(i))
		if err != nil {
			return err
		}
		sum.Write(b)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for range workProcesses {
		if out, err := exec.Command(self, WorkCommand, "").CombinedOutput(); err != nil {
			return fmt.Errorf("a process of the work: %w: %s", err, out)
		}
	}
	heap := make([]byte, workHeap)
	for i := 0; i < len(heap); i += os.Getpagesize() {
		heap[i] = byte(i)
	}
	sum.Write(heap)
	return os.RemoveAll(dir)
}
