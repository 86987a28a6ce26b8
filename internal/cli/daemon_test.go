package cli_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/roottest"
	"github.com/sandtree/sandtree/internal/testrootfs"
)

// sharedState is the state directory of the daemon that tests share; empty
// until the first of them needs it.
var sharedState string

// startShared starts the shared daemon and makes a template called test in it.
var startShared = sync.OnceValue(func() error {
	state, err := os.MkdirTemp(filepath.Dir(binary), "state-")
	if err != nil {
		return err
	}
	sharedState = state
	for _, args := range [][]string{
		{"image", "import", "test", os.Getenv("SANDTREE_TEST_ROOTFS")},
		{"template", "create", "test", "--image", "test"},
	} {
		if out, err := sandtree(state, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w\n%s\n%s", args, err, out, daemonLog(state))
		}
	}
	return nil
})

// daemon returns the state directory of the shared daemon. A test that fails
// shows its log.
func daemon(t *testing.T) (state string) {
	t.Helper()
	roottest.Need(t, "the daemon")
	t.Setenv("SANDTREE_TEST_ROOTFS", testrootfs.Path(t))
	if err := startShared(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the daemon's log:\n%s", daemonLog(sharedState))
		}
	})
	return sharedState
}

func daemonLog(state string) []byte {
	log, _ := os.ReadFile(filepath.Join(state, "serve.log"))
	return log
}

// sandtree is a command of the program under test.
func sandtree(state string, args ...string) *exec.Cmd {
	return exec.Command(binary, append([]string{"--state", state}, args...)...)
}

// endShared stops the shared daemon, if there is one, and says what it left.
func endShared() error {
	if sharedState == "" {
		return nil
	}
	return errors.Join(stopDaemon(sharedState), leftBehind(sharedState))
}

// stopDaemon ends the daemon of a state directory, if one runs, and waits for
// it.
func stopDaemon(state string) error {
	b, err := os.ReadFile(filepath.Join(state, "lock"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var holder struct {
		PID int `json:"pid"`
	}
	if err := json.Unmarshal(b, &holder); err != nil || holder.PID <= 1 {
		return nil // it ended in an orderly way and left no name
	}
	pidfd, err := unix.PidfdOpen(holder.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(pidfd) }()
	// The pid may be somebody else's by now.
	if cmd, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", holder.PID)); err != nil || !strings.Contains(string(cmd), "serve") {
		return nil
	}
	if err := unix.PidfdSendSignal(pidfd, unix.SIGTERM, nil, 0); err != nil {
		return err
	}
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, int(2*time.Minute/time.Millisecond)) //nolint:gosec // a descriptor
	if err == nil && n == 0 {
		err = fmt.Errorf("the daemon %d does not end", holder.PID)
	}
	return err
}

// leftBehind looks for what a stopped daemon left: mounts, loop devices and
// processes with its state directory in their names.
func leftBehind(state string) error {
	var errs []error
	look := func(pattern, what string) {
		files, _ := filepath.Glob(pattern)
		for _, f := range files {
			if content, err := os.ReadFile(f); err == nil && strings.Contains(string(content), state) {
				errs = append(errs, fmt.Errorf("%s was left: %s", what, f))
			}
		}
	}
	look("/proc/self/mountinfo", "a mount")
	look("/sys/block/loop*/loop/backing_file", "a loop device")
	// By what they execute: see killPart.
	all, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, exe := range all {
		if path, err := os.Readlink(exe); err == nil && path == binary {
			errs = append(errs, fmt.Errorf("a process was left: %s", exe))
		}
	}
	return errors.Join(errs...)
}
