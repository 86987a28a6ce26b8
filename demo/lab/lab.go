// Package lab makes sandboxes in which patches of a project are tried: release
// 0.5.0 of sqlparse with the tests of release 0.5.1, which fixed four bugs in
// it. In each runs a warm test process that has pytest and the project
// imported; what becomes of it is kept and brought back from outside, by
// checkpoint, rollback and fork of its sandbox.
package lab

import (
	"archive/tar"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sandtree/sandtree/client"
)

//go:embed warm.py
var warmProgram string

// Where the project is in the sandboxes.
const (
	parent    = "/srv"
	directory = "/srv/lab"
)

// Lab makes sandboxes in which patches are tried.
type Lab struct {
	Client   *client.Client
	Template string // with python3 and pytest
	// Project is a directory with sqlparse/ of 0.5.0 and tests/ of 0.5.1.
	Project string
}

// Check says what the project lacks.
func (l Lab) Check() error {
	for _, part := range []string{"sqlparse", "tests"} {
		if _, err := os.Stat(filepath.Join(l.Project, part)); err != nil {
			return fmt.Errorf("no project to repair: %w (scripts/demo-project fetches it)", err)
		}
	}
	return nil
}

// ProjectDirectory is where scripts/demo-project puts the project.
func ProjectDirectory() string {
	cache := os.Getenv("XDG_CACHE_HOME")
	if cache == "" {
		cache = "/var/cache"
	}
	return filepath.Join(cache, "sandtree", "demo", "project")
}

// Bench is a sandbox with a warm test process.
type Bench struct {
	Sandbox *client.Sandbox
	warm    *warm
}

// Open makes a sandbox, copies the project in and starts the test process.
func (l Lab) Open(ctx context.Context) (*Bench, error) {
	sb, err := l.Client.CreateSandbox(ctx, client.SandboxConfig{Template: l.Template})
	if err != nil {
		return nil, err
	}
	b := &Bench{Sandbox: sb}
	if err := l.furnish(ctx, b); err != nil {
		return nil, errors.Join(err, b.Close(ctx))
	}
	return b, nil
}

func (l Lab) furnish(ctx context.Context, b *Bench) error {
	r, w := io.Pipe()
	go func() { w.CloseWithError(l.pack(w)) }()
	defer func() { _ = r.Close() }()
	if _, err := b.Sandbox.CopyTo(ctx, parent, "0:0", r); err != nil {
		return fmt.Errorf("copy the project in: %w", err)
	}
	argv := append([]string{"python3", directory + "/warm.py", directory, "sqlparse"}, deselected...)
	a, err := b.Sandbox.Exec(ctx, client.Command{Argv: argv, Dir: directory})
	if err != nil {
		return err
	}
	b.warm = talk(a)
	return nil
}

// pack writes the project and the test process's program as a tar.
func (l Lab) pack(w io.Writer) error {
	t := tar.NewWriter(w)
	add := func(h *tar.Header, content []byte) error {
		h.Size = int64(len(content))
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		_, err := t.Write(content)
		return err
	}
	err := filepath.WalkDir(l.Project, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(filepath.Dir(l.Project), path)
		if err != nil {
			return err
		}
		_, below, _ := strings.Cut(filepath.ToSlash(rel), "/")
		name := strings.TrimSuffix("lab/"+below, "/")
		if d.IsDir() {
			return add(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755}, nil)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return add(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, ModTime: time.Now()}, content)
	})
	if err != nil {
		return err
	}
	if err := add(&tar.Header{Typeflag: tar.TypeReg, Name: "lab/warm.py", Mode: 0o644}, []byte(warmProgram)); err != nil {
		return err
	}
	return t.Close()
}

// Join speaks to the copy of the test process in a fork.
func Join(ctx context.Context, sb *client.Sandbox) (*Bench, error) {
	all, err := sb.Sessions(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range all {
		if s.Ended {
			continue
		}
		a, err := s.Attach(ctx, client.AttachOptions{})
		if err != nil {
			return nil, err
		}
		return &Bench{Sandbox: sb, warm: talk(a)}, nil
	}
	return nil, fmt.Errorf("no test process runs in fork %s", sb.ID)
}

// Try applies edits and returns the score of what the project is then. The
// test process has become another by it: to go back, roll the sandbox back.
func (b *Bench) Try(edits []Edit) (Score, error) { return b.warm.try(edits) }

// Close removes the sandbox.
func (b *Bench) Close(ctx context.Context) error {
	if b.warm != nil {
		_ = b.warm.a.Close()
	}
	return b.Sandbox.Remove(context.WithoutCancel(ctx), true)
}
