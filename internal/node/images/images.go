// Package images is what a node does with images: it takes uploads, pulls,
// lists, and keeps images that templates use.
package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/image"
	imagestore "github.com/sandtree/sandtree/internal/image/store"
	"github.com/sandtree/sandtree/internal/store"
)

// Image is an image in the store.
type Image struct {
	ID, Name, User, Dir string
	Layers              []string // digests, lowest first
	Size                int64    // bytes
	Created             time.Time
	Env                 map[string]string
	Entrypoint, Cmd     []string
}

// Progress is how far long work is, in bytes. Total is 0 if it isn't known.
type Progress struct {
	Stage       string
	Done, Total int64
}

// Images are the node's images.
type Images struct {
	store     *imagestore.Store
	templates store.Templates
	uploads   string // directory of what is being received

	// using is held shared while an image becomes a template's, and
	// exclusively while one is removed.
	using sync.RWMutex
}

// Open opens the images in a directory. uploads is a directory for what is
// being received; what an earlier node left in it is deleted.
func Open(dir, uploads string, templates store.Templates) (*Images, error) {
	st, err := imagestore.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := os.RemoveAll(uploads); err != nil {
		return nil, fmt.Errorf("uploads: %w", err)
	}
	if err := os.MkdirAll(uploads, 0o700); err != nil {
		return nil, fmt.Errorf("uploads: %w", err)
	}
	return &Images{store: st, templates: templates, uploads: uploads}, nil
}

// Import makes an image of an uploaded tar: an OCI layout, what docker save
// wrote, or a root file system. total, its size in bytes, is for the progress
// and may be 0.
func (m *Images) Import(ctx context.Context, name string, src io.Reader, total int64, progress func(Progress)) (Image, error) {
	if err := m.store.Free(name); err != nil {
		return Image{}, fmt.Errorf("import image: %w", err) // before gigabytes move
	}
	f, err := os.CreateTemp(m.uploads, "upload-*.tar")
	if err != nil {
		return Image{}, fmt.Errorf("import image %s: %w", name, classify(err))
	}
	defer func() { _ = os.Remove(f.Name()) }()
	n, err := io.Copy(f, &counter{r: src, total: total, report: progress})
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil && n == 0 {
		err = fault.New(fault.Invalid, "nothing was sent")
	}
	if err != nil {
		return Image{}, fmt.Errorf("import image %s: receive: %w", name, classify(err))
	}
	r, err := image.Import(ctx, m.store, name, f.Name(), image.Options{Progress: layers(progress)})
	if err != nil {
		return Image{}, readable(err, f.Name())
	}
	return toImage(r), nil
}

// readable takes the upload's file name, which says nothing to the user, out
// of an error.
func readable(err error, file string) error {
	text := strings.ReplaceAll(err.Error(), file, "the upload")
	if text == err.Error() {
		return err
	}
	return &fault.Error{Kind: fault.KindOf(err), Hint: fault.HintOf(err), Err: errors.New(text)}
}

// Pull makes an image of one in a registry. An empty name means the reference.
// insecure allows a registry without TLS.
func (m *Images) Pull(ctx context.Context, name, reference string, insecure bool, progress func(Progress)) (Image, error) {
	if name == "" {
		name = reference
	}
	r, err := image.Pull(ctx, m.store, name, reference, image.Options{Insecure: insecure, Progress: layers(progress)})
	if err != nil {
		return Image{}, err
	}
	return toImage(r), nil
}

// layers passes an import's progress on.
func layers(report func(Progress)) func(image.Progress) {
	return func(p image.Progress) {
		stage := "layer"
		if p.Layers > 0 {
			stage = fmt.Sprintf("layer %d/%d", p.Layer, p.Layers)
		}
		report(Progress{Stage: stage, Done: p.Done, Total: p.Total})
	}
}

// List lists the images by name.
func (m *Images) List(context.Context) ([]Image, error) {
	rs, err := m.store.List()
	if err != nil {
		return nil, err
	}
	all := make([]Image, 0, len(rs))
	for _, r := range rs {
		all = append(all, toImage(r))
	}
	return all, nil
}

// Get finds an image by id or name.
func (m *Images) Get(_ context.Context, ref string) (Image, error) {
	if ref == "" {
		return Image{}, fault.New(fault.Invalid, "no image is named")
	}
	r, err := m.store.Get(ref)
	if err != nil {
		return Image{}, err
	}
	return toImage(r), nil
}

// Hold keeps all images until the function that it returns is called.
func (m *Images) Hold() (release func()) {
	m.using.RLock()
	return m.using.RUnlock
}

// Remove deletes an image. It refuses, with Conflict, while a template uses it.
func (m *Images) Remove(ctx context.Context, ref string) (string, error) {
	m.using.Lock()
	defer m.using.Unlock()
	i, err := m.Get(ctx, ref)
	if err != nil {
		return "", fmt.Errorf("remove: %w", err)
	}
	ts, err := m.templates.Templates(ctx)
	if err != nil {
		return "", err
	}
	var users []string
	for _, t := range ts {
		if t.ImageID == i.ID {
			users = append(users, t.Name)
		}
	}
	if len(users) > 0 {
		return "", fault.New(fault.Conflict, "remove: image %q is used by templates: %s", i.Name, strings.Join(users, ", ")).
			WithHint("sandtree template rm %s removes the template", users[0])
	}
	if _, err := m.store.Remove(i.ID); err != nil {
		return "", err
	}
	return i.ID, nil
}

func toImage(r image.Record) Image {
	i := Image{
		ID: r.ID, Name: r.Name, User: r.Config.User, Dir: r.Config.WorkingDir, Size: r.Size(), Created: r.Created,
		Entrypoint: r.Config.Entrypoint, Cmd: r.Config.Cmd,
	}
	for _, l := range r.Layers {
		i.Layers = append(i.Layers, l.Digest)
	}
	for _, kv := range r.Config.Env {
		if k, v, ok := strings.Cut(kv, "="); ok && k != "" {
			if i.Env == nil {
				i.Env = map[string]string{}
			}
			i.Env[k] = v
		}
	}
	return i
}

// counter reports how much was read.
type counter struct {
	r           io.Reader
	done, total int64
	report      func(Progress)
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.done += int64(n)
	c.report(Progress{Stage: "upload", Done: c.done, Total: c.total})
	return n, err
}

func classify(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return fault.New(fault.Exhausted, "%w", err).WithHint("free space on the disk of the state directory")
	}
	return err
}
