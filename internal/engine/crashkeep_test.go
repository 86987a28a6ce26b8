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
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/durable"
	"github.com/sandtree/sandtree/internal/engine"
	"github.com/sandtree/sandtree/internal/failpoint"
	"github.com/sandtree/sandtree/internal/linux/cgroup"
	"github.com/sandtree/sandtree/internal/rootfs/pool"
	"github.com/sandtree/sandtree/internal/supervisor/control"
	"github.com/sandtree/sandtree/internal/wire"
	"github.com/sandtree/sandtree/internal/worker"
	workercontrol "github.com/sandtree/sandtree/internal/worker/control"
)

// crashRepositoryEnv is set beside crashEnv for a program that makes checkpoints
// durable until it crashes: where. It says "durable ID" when that was reported,
// and "removing ID" before it asks for a removal.
const crashRepositoryEnv = "SANDTREE_TEST_CRASH_REPOSITORY"

func keepSteps(cfg control.Config, repository string) error {
	log := slog.New(slog.DiscardHandler)
	e, err := engine.New(cfg, control.Events{
		SessionEnded: func(control.Session) {}, SandboxEnded: func(control.SandboxEnded) {},
		CheckpointFailed: func(control.CheckpointFailed) {}, CheckpointKept: func(control.Checkpoint) {},
	}, log)
	if err != nil {
		return err
	}
	w, err := worker.Open(workercontrol.Config{Family: "family", Repository: repository}, log)
	if err != nil {
		return err
	}
	defer w.Close()
	a, b, err := wire.Pair()
	if err != nil {
		return err
	}
	defer a.Close()
	if err := w.Serve(a); err != nil {
		return err
	}
	if err := e.UseWorker(background, b); err != nil {
		return err
	}
	sb := fmt.Sprint("sb", os.Getpid())
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
	ref := func(n int) control.CheckpointRef {
		return control.CheckpointRef{Sandbox: sb, Checkpoint: fmt.Sprintf("cp%d-%d", os.Getpid(), n)}
	}
	for n := range 2 {
		if _, err := e.Checkpoint(background, control.CheckpointRequest{Sandbox: sb, Checkpoint: ref(n).Checkpoint, Keep: true}); err != nil {
			return err
		}
		if c, err := e.Kept(background, ref(n)); err != nil || c.Durable != control.DurableYes {
			return fmt.Errorf("checkpoint %d is not durable: %s, %w", n, c.DurableReason, err)
		}
		fmt.Println("durable", ref(n).Checkpoint)
	}
	if _, err := e.Suspend(background, control.SuspendRequest{Sandbox: sb, Checkpoint: ref(2).Checkpoint, Unload: true}); err != nil {
		return err
	}
	fmt.Println("durable", ref(2).Checkpoint)
	if _, _, err := e.Rollback(background, ref(0)); err != nil {
		return err
	}
	fmt.Println("removing", ref(1).Checkpoint)
	if err := e.CheckpointRemove(background, ref(1)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(background, 20*time.Second)
	defer cancel()
	return e.Close(ctx)
}

// Whenever the supervisor and the worker die, every checkpoint that was reported
// durable is in the repository, whole.
func TestCrashLosesNothingDurable(t *testing.T) {
	lower := rootLayer(t)
	dir := t.TempDir()
	mount := filepath.Join(dir, "pool")
	check(t, os.Mkdir(mount, 0o755))
	p, err := pool.Open(background, pool.Config{Path: filepath.Join(dir, "pool.img"), MountPoint: mount, Initial: 1 << 30})
	check(t, err)
	defer func() { check(t, p.Destroy()) }()
	layout, err := cgroup.Detect()
	check(t, err)
	repository := filepath.Join(dir, "repository") // one for all: what a crash leaves must not harm the next
	died, reported := 0, 0
	for i, point := range failpoint.Names() {
		ours := false
		for _, prefix := range []string{"engine.keep.", "engine.load.", "engine.suspend.", "worker.", "durable."} {
			ours = ours || strings.HasPrefix(point, prefix)
		}
		if !ours {
			continue
		}
		name := fmt.Sprintf("crashkeep%d-%d", os.Getpid(), i)
		parent, err := layout.OpenParent(name)
		check(t, err)
		family, err := parent.Child("family")
		check(t, err)
		killed, kept := keepToCrash(t, point, repository, control.Config{
			Family: "family", Pool: mount, Layers: []string{lower}, CgroupParent: name, CgroupFamily: "family", IDBase: idBase,
			NoStandbys: true, Durable: true,
		})
		if killed {
			died++
		}
		waitEmpty(t, point, family.Path())
		ctx, cancel := context.WithTimeout(background, 20*time.Second)
		check(t, parent.Remove(ctx))
		cancel()
		r, err := durable.Open(repository, durable.Options{})
		check(t, err)
		if len(kept) > 0 {
			reported += len(kept)
			all, err := r.List(background)
			check(t, err)
			for _, id := range kept {
				if !slices.ContainsFunc(all, func(i durable.Info) bool { return i.ID == id }) {
					t.Errorf("%s: checkpoint %s was reported durable and is not there", point, id)
				}
			}
			problems, err := r.Verify(background, kept...)
			if err != nil || len(problems) > 0 {
				t.Errorf("%s: of %v, which were reported durable: %v %v", point, kept, problems, err)
			}
		}
		check(t, r.Close())
	}
	if died < 8 || reported < 12 {
		t.Errorf("only %d failpoints killed, and %d checkpoints were durable", died, reported)
	}
}

// keepToCrash runs keepSteps until a failpoint kills it, and returns what it had
// reported durable and not removed.
func keepToCrash(t *testing.T, point, repository string, cfg control.Config) (killed bool, kept []string) {
	t.Helper()
	config, err := json.Marshal(cfg)
	check(t, err)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), crashEnv+"="+string(config), crashRepositoryEnv+"="+repository, failpoint.Env+"="+point+"=kill")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	there := map[string]bool{}
	for l := range strings.Lines(out.String()) {
		verb, id, _ := strings.Cut(strings.TrimSpace(l), " ")
		there[id] = verb == "durable"
	}
	for id, yes := range there {
		if yes {
			kept = append(kept, id)
		}
	}
	ws, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if err == nil || ws.Signaled() && ws.Signal() == syscall.SIGKILL {
		return err != nil, kept
	}
	t.Errorf("%s: %v: %s", point, err, errs.String())
	return false, kept
}
