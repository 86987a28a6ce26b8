package engine_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/engine"
	"github.com/sandtree/sandtree/internal/failpoint"
	"github.com/sandtree/sandtree/internal/linux/cgroup"
	"github.com/sandtree/sandtree/internal/rootfs/pool"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// crashEnv makes this program one that crashes: its value is the configuration
// of an engine.
const crashEnv = "SANDTREE_TEST_CRASH"

// crash runs a sandbox through checkpoint, rollback and fork, until a failpoint
// kills this process.
func crash(config string) int {
	var cfg control.Config
	err := json.Unmarshal([]byte(config), &cfg)
	if err == nil {
		err = failpoint.CheckEnv()
	}
	repository := os.Getenv(crashRepositoryEnv)
	switch {
	case err != nil:
	case repository != "":
		err = keepSteps(cfg, repository)
	default:
		err = crashSteps(cfg)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func crashSteps(cfg control.Config) error {
	e, err := engine.New(cfg, control.Events{SessionEnded: func(control.Session) {}, SandboxEnded: func(control.SandboxEnded) {}, CheckpointFailed: func(control.CheckpointFailed) {}, CheckpointKept: func(control.Checkpoint) {}}, slog.Default())
	if err != nil {
		return err
	}
	// An id is never used again, not by the next process either.
	id := func(kind string) string { return fmt.Sprint(kind, os.Getpid()) }
	sb := id("sb")
	if _, err := e.Create(background, control.CreateRequest{Sandbox: sb, Hostname: "box"}); err != nil {
		return err
	}
	_, files, err := e.Exec(background, control.ExecRequest{Sandbox: sb, Session: "se", Argv: []string{"bash", "-c", "sleep 1000 & echo ready; cat"}})
	if err != nil {
		return err
	}
	if l, err := bufio.NewReader(files[1]).ReadString('\n'); l != "ready\n" {
		return fmt.Errorf("bash says %q: %w", l, err)
	}
	ref := control.CheckpointRef{Sandbox: sb, Checkpoint: id("cp")}
	if _, err := e.Checkpoint(background, control.CheckpointRequest{Sandbox: sb, Checkpoint: ref.Checkpoint}); err != nil {
		return err
	}
	if _, _, err := e.Rollback(background, ref); err != nil {
		return err
	}
	if _, err := forked(e.Fork(background, control.ForkRequest{From: ref, Sandboxes: []string{id("copy")}, Hostnames: []string{""}})); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(background, 20*time.Second)
	defer cancel()
	return e.Close(ctx)
}

// A supervisor that dies at any step leaves no process, and files that the next
// one can work with.
func TestCrashAtEveryStep(t *testing.T) {
	lower := rootLayer(t)
	dir := t.TempDir()
	mount := filepath.Join(dir, "pool")
	check(t, os.Mkdir(mount, 0o755))
	p, err := pool.Open(background, pool.Config{Path: filepath.Join(dir, "pool.img"), MountPoint: mount, Initial: 1 << 30})
	check(t, err)
	defer func() { check(t, p.Destroy()) }()
	layout, err := cgroup.Detect()
	check(t, err)
	points := failpoint.Names()
	died := 0
	for i, point := range points {
		if !strings.HasPrefix(point, "engine.") && !strings.HasPrefix(point, "process.") {
			continue
		}
		name := fmt.Sprintf("crashtest%d-%d", os.Getpid(), i)
		parent, err := layout.OpenParent(name)
		check(t, err)
		family, err := parent.Child("family")
		check(t, err)
		if runToCrash(t, point, control.Config{
			Family: "family", Pool: mount, Layers: []string{lower}, CgroupParent: name, CgroupFamily: "family", IDBase: idBase, NoStandbys: true,
		}) {
			died++
		}
		waitEmpty(t, point, family.Path())
		ctx, cancel := context.WithTimeout(background, 20*time.Second)
		check(t, parent.Remove(ctx))
		cancel()
	}
	if died < 12 {
		t.Errorf("only %d of %d failpoints killed", died, len(points))
	}
}

// runToCrash reports whether the process was killed by the failpoint. It may
// not come by there, and then ends well.
func runToCrash(t *testing.T, point string, cfg control.Config) bool {
	t.Helper()
	config, err := json.Marshal(cfg)
	check(t, err)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), crashEnv+"="+string(config), failpoint.Env+"="+point+"=kill")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	ws, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if err == nil || ws.Signaled() && ws.Signal() == syscall.SIGKILL {
		return err != nil
	}
	t.Errorf("%s: %v: %s", point, err, out.String())
	return false
}

// waitEmpty waits until no process is left in a cgroup and those below it.
func waitEmpty(t *testing.T, point, dir string) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		n := 0
		check(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.Name() != "cgroup.procs" {
				return err
			}
			b, err := os.ReadFile(path)
			n += len(strings.Fields(string(b)))
			return err
		}))
		if n == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %d processes are left 10 s after the crash", point, n)
		}
		time.Sleep(5 * time.Millisecond) // polling: nobody is left to tell
	}
}
