package peer

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// rootTar is a root file system with a true and a sleep, which
// scripts/bench-peers makes.
const rootTar = "root.tar"

func findRunc(_ context.Context, cfg Config) (measure, error) {
	runc, err := exec.LookPath("runc")
	if err != nil {
		return nil, ErrAbsent
	}
	tar := filepath.Join(cfg.Cache, rootTar)
	if _, err := os.Stat(tar); err != nil {
		return nil, ErrAbsent
	}
	return func(ctx context.Context) ([]Figure, error) { return measureRunc(ctx, cfg, runc, tar) }, nil
}

func measureRunc(ctx context.Context, cfg Config, runc, tar string) ([]Figure, error) {
	bundle := filepath.Join(cfg.Scratch, "runc")
	root := filepath.Join(bundle, "rootfs")
	if err := os.MkdirAll(root, 0o755); err != nil {
		return nil, err
	}
	if err := run(ctx, "tar", "-xf", tar, "-C", root); err != nil {
		return nil, err
	}
	state := []string{runc, "--root", filepath.Join(bundle, "state")}
	with := func(args ...string) []string { return append(state[:len(state):len(state)], args...) }
	if err := run(ctx, runc, "spec", "--bundle", bundle); err != nil {
		return nil, err
	}
	if err := writeSpec(bundle, "true"); err != nil {
		return nil, err
	}
	name := "sandtree-bench-" + rand.Text()[:8]
	created, err := times(cfg.N, timed(ctx, with("run", "--bundle", bundle, name)...))
	if err != nil {
		return nil, err
	}
	if err := writeSpec(bundle, "sleep", "1000000"); err != nil {
		return nil, err
	}
	if err := detached(ctx, with("run", "--detach", "--bundle", bundle, name)...); err != nil {
		return nil, err
	}
	defer func() { _ = run(context.WithoutCancel(ctx), with("delete", "--force", name)...) }()
	executed, err := times(cfg.N, timed(ctx, with("exec", name, "true")...))
	if err != nil {
		return nil, err
	}
	return []Figure{
		{"runc_run", "run true in a new container", created},
		{"runc_exec", "run true in a container", executed},
	}, nil
}

// detached starts a container whose processes keep the standard streams, so
// they must not be pipes that somebody reads to their end.
func detached(ctx context.Context, argv ...string) error {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%v: %w", argv, err)
	}
	return nil
}

// writeSpec changes the command of a bundle's configuration, without a
// terminal.
func writeSpec(bundle string, argv ...string) error {
	path := filepath.Join(bundle, "config.json")
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var spec map[string]any
	if err := json.Unmarshal(text, &spec); err != nil {
		return err
	}
	process, ok := spec["process"].(map[string]any)
	if !ok {
		return fmt.Errorf("%s has no process", path)
	}
	process["args"], process["terminal"] = argv, false
	if text, err = json.Marshal(spec); err != nil {
		return err
	}
	return os.WriteFile(path, text, 0o600)
}
