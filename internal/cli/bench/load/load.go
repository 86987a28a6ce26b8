// Package load keeps a daemon busy while something else of it is measured:
// other families work, output floods, images are written.
package load

import (
	"archive/tar"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/cli/bench/subject"
)

// Load is work that goes on until it is stopped.
type Load struct {
	c      *client.Client
	cancel context.CancelFunc
	wg     sync.WaitGroup
	undo   []func() // in reverse order

	mu   sync.Mutex
	errs []error
}

// begin makes a load without any work yet. Its context ends with Stop.
func begin(ctx context.Context, c *client.Client) (context.Context, *Load) {
	ctx, cancel := context.WithCancel(ctx)
	return ctx, &Load{c: c, cancel: cancel}
}

// Stop ends the work and removes what it made.
func (l *Load) Stop() {
	l.cancel()
	l.wg.Wait()
	for i := len(l.undo) - 1; i >= 0; i-- {
		l.undo[i]()
	}
	l.undo = nil
}

// Err says what kept work from being done.
func (l *Load) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Join(l.errs...)
}

// forever repeats work until the load is stopped.
func (l *Load) forever(ctx context.Context, what string, work func() error) {
	l.wg.Go(func() {
		for ctx.Err() == nil {
			if err := work(); err != nil && ctx.Err() == nil {
				l.mu.Lock()
				l.errs = append(l.errs, fmt.Errorf("%s: %w", what, err))
				l.mu.Unlock()
				return
			}
		}
	})
}

// CPU keeps one processor busy in another sandbox of the same template.
func CPU(ctx context.Context, c *client.Client, template string) (*Load, error) {
	ctx, l := begin(ctx, c)
	return l.orStop(l.spin(ctx, template))
}

// orStop ends a load of which a part could not begin.
func (l *Load) orStop(err error) (*Load, error) {
	if err != nil {
		l.Stop()
		return nil, err
	}
	return l, nil
}

// All works in another family and beside it: a busy processor, a program that
// writes without pause to a client that reads, checkpoints one after the
// other, and images that are imported.
func All(ctx context.Context, c *client.Client, template string) (*Load, error) {
	ctx, l := begin(ctx, c)
	other, err := l.family(ctx, template)
	if err == nil {
		err = l.spin(ctx, other)
	}
	if err == nil {
		err = l.flood(ctx, other)
	}
	if err == nil {
		err = l.checkpoints(ctx, other)
	}
	if err == nil {
		l.images(ctx)
	}
	return l.orStop(err)
}

// family makes a template of the same image, since the sandboxes of a template
// share a supervisor.
func (l *Load) family(ctx context.Context, template string) (string, error) {
	if template == "" {
		template = "debian"
	}
	of, err := l.c.Template(ctx, template)
	if err != nil {
		return "", err
	}
	t, err := l.c.CreateTemplate(ctx, client.TemplateConfig{Name: "bench-load-" + rand.Text()[:8], Image: of.ImageID})
	if err != nil {
		return "", err
	}
	l.undo = append(l.undo, func() { _ = l.c.RemoveTemplate(context.WithoutCancel(ctx), t.ID, true) })
	return t.ID, nil
}

// start starts a command in a sandbox of its own.
func (l *Load) start(ctx context.Context, template string, argv ...string) (*client.Session, error) {
	sb, err := l.c.CreateSandbox(ctx, client.SandboxConfig{Template: template})
	if err != nil {
		return nil, err
	}
	l.undo = append(l.undo, func() { _ = sb.Remove(context.WithoutCancel(ctx), true) })
	return sb.Start(ctx, client.Command{Argv: argv, NoStdin: true})
}

func (l *Load) spin(ctx context.Context, template string) error {
	_, err := l.start(ctx, template, "sh", "-c", "while :; do :; done")
	return err
}

func (l *Load) flood(ctx context.Context, template string) error {
	s, err := l.start(ctx, template, "yes", "a line of output that somebody reads")
	if err != nil {
		return err
	}
	l.forever(ctx, "flood of output", func() error {
		a, err := s.Attach(ctx, client.AttachOptions{})
		if err != nil {
			return err
		}
		defer a.Close()
		_, err = a.Copy(client.Stdio{Out: io.Discard})
		return err
	})
	return nil
}

// checkpoints takes checkpoints of a sandbox and removes them again.
func (l *Load) checkpoints(ctx context.Context, template string) error {
	s, err := subject.Start(ctx, l.c, subject.Config{Template: template, HeapBytes: 20 << 20, DirtyBytes: 4 << 20, DirtyFiles: 10})
	if err != nil {
		return err
	}
	l.undo = append(l.undo, func() { s.Close(ctx) })
	l.forever(ctx, "checkpoints of a neighbour", func() error {
		if err := s.Tell("dirty"); err != nil {
			return err
		}
		cp, err := s.Sandbox.Checkpoint(ctx, "")
		if err != nil {
			return err
		}
		return cp.Remove(ctx)
	})
	return nil
}

// imageBytes is the size of an image that is imported over and over.
const imageBytes = 16 << 20

func (l *Load) images(ctx context.Context) {
	name := "bench-load-" + rand.Text()[:8]
	l.forever(ctx, "import of images", func() error {
		r, w := io.Pipe()
		defer r.Close()
		go func() { _ = w.CloseWithError(writeImage(w)) }()
		img, err := l.c.ImportImage(ctx, client.ImportConfig{Name: name, Kind: client.RootImage}, r)
		if err != nil {
			return err
		}
		return l.c.RemoveImage(context.WithoutCancel(ctx), img.ID)
	})
}

// writeImage writes the tar of a root file system that no other has.
func writeImage(w io.Writer) error {
	t := tar.NewWriter(w)
	if err := t.WriteHeader(&tar.Header{Name: "random", Typeflag: tar.TypeReg, Mode: 0o644, Size: imageBytes}); err != nil {
		return err
	}
	if _, err := io.CopyN(t, rand.Reader, imageBytes); err != nil {
		return err
	}
	return t.Close()
}
