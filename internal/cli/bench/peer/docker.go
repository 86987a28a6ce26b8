package peer

import (
	"context"
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// findDocker finds docker if its daemon answers.
func findDocker(ctx context.Context, cfg Config) (measure, error) {
	docker, err := exec.LookPath("docker")
	if err != nil {
		return nil, ErrAbsent
	}
	tar := filepath.Join(cfg.Cache, rootTar)
	if _, err := os.Stat(tar); err != nil {
		return nil, ErrAbsent
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := run(ctx, docker, "info"); err != nil {
		return nil, ErrAbsent // no daemon
	}
	return func(ctx context.Context) ([]Figure, error) { return measureDocker(ctx, cfg, docker, tar) }, nil
}

func measureDocker(ctx context.Context, cfg Config, docker, tar string) ([]Figure, error) {
	name := "sandtree-bench-" + strings.ToLower(rand.Text()[:8])
	if err := run(ctx, docker, "import", tar, name); err != nil {
		return nil, err
	}
	after := context.WithoutCancel(ctx)
	defer func() { _ = run(after, docker, "rmi", "--force", name) }()
	n := max(cfg.N/5, 3)
	created, err := times(n, timed(ctx, docker, "run", "--rm", "--network", "none", name, "true"))
	if err != nil {
		return nil, err
	}
	if err := run(ctx, docker, "run", "--detach", "--network", "none", "--name", name, name, "sleep", "1000000"); err != nil {
		return nil, err
	}
	defer func() { _ = run(after, docker, "rm", "--force", name) }()
	executed, err := times(n, timed(ctx, docker, "exec", name, "true"))
	if err != nil {
		return nil, err
	}
	committed, err := times(n, func() (time.Duration, error) {
		if err := run(ctx, docker, "exec", name, "sh", "-c", "for i in 0 1 2 3 4 5 6 7 8 9; do head -c 4096 /dev/urandom > /$i; done"); err != nil {
			return 0, err
		}
		begin := time.Now()
		id, err := output(ctx, docker, "commit", name)
		took := time.Since(begin)
		if err == nil {
			err = run(ctx, docker, "rmi", id)
		}
		return took, err
	})
	if err != nil {
		return nil, err
	}
	return []Figure{
		{"docker_run", "run true in a new container", created},
		{"docker_exec", "run true in a container", executed},
		{"docker_commit", "commit 10 changed files; no processes", committed},
	}, nil
}
