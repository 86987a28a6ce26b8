package main

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
	labParent = "/srv"
	labDir    = "/srv/lab"
)

// lab makes sandboxes in which patches are tried.
type lab struct {
	c                 *client.Client
	template, project string
}

// bench is a sandbox with a warm test process.
type bench struct {
	sandbox *client.Sandbox
	warm    *warm
}

// open makes a sandbox, copies the project in and starts the test process.
func (l lab) open(ctx context.Context) (*bench, error) {
	sb, err := l.c.CreateSandbox(ctx, client.SandboxConfig{Template: l.template})
	if err != nil {
		return nil, err
	}
	b := &bench{sandbox: sb}
	if err := l.furnish(ctx, b); err != nil {
		return nil, errors.Join(err, b.close(ctx))
	}
	return b, nil
}

func (l lab) furnish(ctx context.Context, b *bench) error {
	r, w := io.Pipe()
	go func() { w.CloseWithError(l.pack(w)) }()
	defer func() { _ = r.Close() }()
	if _, err := b.sandbox.CopyTo(ctx, labParent, "0:0", r); err != nil {
		return fmt.Errorf("copy the project in: %w", err)
	}
	argv := append([]string{"python3", labDir + "/warm.py", labDir, "sqlparse"}, deselected...)
	a, err := b.sandbox.Exec(ctx, client.Command{Argv: argv, Dir: labDir})
	if err != nil {
		return err
	}
	b.warm = talk(a)
	return nil
}

// pack writes the project and the test process's program as a tar.
func (l lab) pack(w io.Writer) error {
	t := tar.NewWriter(w)
	add := func(h *tar.Header, content []byte) error {
		h.Size = int64(len(content))
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		_, err := t.Write(content)
		return err
	}
	err := filepath.WalkDir(l.project, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(filepath.Dir(l.project), path)
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

// join speaks to the copy of the test process in a fork.
func (l lab) join(ctx context.Context, sb *client.Sandbox) (*bench, error) {
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
		return &bench{sandbox: sb, warm: talk(a)}, nil
	}
	return nil, fmt.Errorf("no test process runs in fork %s", sb.ID)
}

func (b *bench) close(ctx context.Context) error {
	if b.warm != nil {
		_ = b.warm.a.Close()
	}
	return b.sandbox.Remove(context.WithoutCancel(ctx), true)
}
