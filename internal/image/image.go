// Package image puts images into the store: it reads an OCI layout, an archive,
// a root file system or a registry (package oci), applies the layers one upon
// the other (package layer), writes each as a read-only EROFS image (package
// erofs), and records them (package store).
//
// Nothing of it needs root, but to read all of a directory that others own.
// The whole image is there at the end or nothing of it is.
package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/image/erofs"
	"github.com/sandtree/sandtree/internal/image/layer"
	"github.com/sandtree/sandtree/internal/image/oci"
	"github.com/sandtree/sandtree/internal/image/store"
)

// Record is an image in the store.
type Record = store.Record

// Options say how an image is imported. The zero value will do.
type Options struct {
	// Platform is what the image must be for, in the form os/architecture[/variant];
	// empty for this machine's.
	Platform string
	// Reference is the image's name in an archive or layout that holds several.
	Reference string
	// Insecure lets Pull speak plain HTTP with other machines than this one.
	Insecure bool
	// Flatten makes one layer of all. It is not shared with other images then.
	Flatten bool
	// Progress, if not nil, is told how far the import is, from one goroutine,
	// each time some bytes were read.
	Progress func(Progress)
}

// Progress is how far an import is.
type Progress struct {
	// Layer counts from 1 to Layers.
	Layer, Layers int
	// Done and Total are bytes of the source as it is stored, mostly compressed.
	// Total is 0 if it is unknown.
	Done, Total int64
}

// Import makes an image of what lies at src on this machine: an OCI layout (a
// directory or a tar of it), a tar of `docker save`, a tar of a root file
// system, or the directory of one. Tars may be compressed with gzip or zstd.
//
// Errors are of kind Exists if the name is taken, NotFound or Permission for
// src, Invalid if it is damaged or for another platform, Exhausted if the disk
// is full.
func Import(ctx context.Context, st *store.Store, name, src string, opts Options) (Record, error) {
	r, err := run(ctx, st, name, src, opts, func(i *importer) error {
		plain, err := oci.IsDirectory(src)
		if err != nil {
			return err
		}
		if plain {
			return i.directory(src)
		}
		img, err := oci.Open(ctx, src, i.TempDir(), oci.Want{Platform: i.Platform, Reference: opts.Reference})
		if err != nil {
			return err
		}
		return errors.Join(i.image(img), img.Close())
	})
	if err != nil {
		return Record{}, fmt.Errorf("import image %s: %w", name, err)
	}
	return r, nil
}

// ImportStream is [Import] of a tar that comes as a stream of size bytes, 0 if that
// is not known. source is what the record says of where it came from.
func ImportStream(ctx context.Context, st *store.Store, name, source string, r io.Reader, size int64, opts Options) (Record, error) {
	rec, err := run(ctx, st, name, source, opts, func(i *importer) error {
		img, err := oci.OpenStream(ctx, r, size, i.TempDir(), oci.Want{Platform: i.Platform, Reference: opts.Reference})
		if err != nil {
			return err
		}
		return errors.Join(i.image(img), img.Close())
	})
	if err != nil {
		return Record{}, fmt.Errorf("import image %s: %w", name, err)
	}
	return rec, nil
}

// Pull makes an image of one in a registry, named as docker names it. Errors
// are those of [Import], and Unavailable if the registry does not answer.
func Pull(ctx context.Context, st *store.Store, name, reference string, opts Options) (Record, error) {
	r, err := run(ctx, st, name, reference, opts, func(i *importer) error {
		img, err := oci.Remote(ctx, reference, i.Platform, opts.Insecure)
		if err != nil {
			return err
		}
		return errors.Join(i.image(img), img.Close())
	})
	if err != nil {
		return Record{}, fmt.Errorf("pull image %s: %w", name, err)
	}
	return r, nil
}

// importer is the state of one import.
type importer struct {
	*store.Import
	Options
	ctx    context.Context
	record Record
}

// run makes room for an import, lets fill do it, and commits.
func run(ctx context.Context, st *store.Store, name, source string, opts Options, fill func(*importer) error) (r Record, err error) {
	if opts.Platform == "" {
		opts.Platform = "linux/" + runtime.GOARCH
	}
	if opts.Platform, err = oci.ParsePlatform(opts.Platform); err != nil {
		return Record{}, err
	}
	if err := st.Free(name); err != nil {
		return Record{}, err
	}
	tx, err := st.Begin()
	if err != nil {
		return Record{}, err
	}
	defer func() {
		if eerr := tx.End(); eerr != nil && err == nil {
			err = eerr
		}
	}()
	i := &importer{Import: tx, Options: opts, ctx: ctx}
	i.record = Record{Name: name, Source: source, Platform: opts.Platform}
	if err := fill(i); err != nil {
		return Record{}, err
	}
	return tx.Commit(ctx, i.record)
}

// write adds a tree as the record's next layer. If an equal one lies below
// already (instructions that change nothing all give the same), that is left out:
// overlayfs refuses one layer twice, and the upper hides all of the lower.
func (i *importer) write(t *erofs.Tree) error {
	l, err := i.AddLayer(i.ctx, func(f *os.File) error {
		_, err := erofs.Write(i.ctx, f, t)
		return err
	})
	if err != nil {
		return err
	}
	below := slices.DeleteFunc(i.record.Layers, func(b store.Layer) bool { return b == l })
	i.record.Layers = append(below, l)
	return nil
}

// directory makes one layer of a directory.
func (i *importer) directory(path string) error {
	d, err := erofs.Scan(i.ctx, path)
	if err != nil {
		return err
	}
	err = i.usable(&d.Tree)
	if err == nil {
		err = i.write(&d.Tree)
	}
	return errors.Join(err, d.Close())
}

// image makes the layers of an image.
func (i *importer) image(img *oci.Image) (err error) {
	spool, err := layer.NewSpool(i.TempDir())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, spool.Close()) }()
	stack := layer.NewStack(spool, layer.DefaultLimits)
	at := Progress{Layers: len(img.Layers)}
	for _, l := range img.Layers {
		at.Total += l.Size
	}
	for n, l := range img.Layers {
		at.Layer = n + 1
		diff, err := i.apply(stack, l, &at)
		if err != nil {
			return fmt.Errorf("layer %d of %d: %w", n+1, len(img.Layers), err)
		}
		if !i.Flatten {
			if err := i.write(diff); err != nil {
				return fmt.Errorf("layer %d of %d: %w", n+1, len(img.Layers), err)
			}
		}
	}
	if err := i.usable(stack.View()); err != nil {
		return err
	}
	i.record.Platform, i.record.Config = img.Platform, store.Config(img.Config)
	if i.Flatten {
		return i.write(stack.View())
	}
	return nil
}

// apply reads one layer.
func (i *importer) apply(stack *layer.Stack, l oci.Layer, at *Progress) (*erofs.Tree, error) {
	r, err := l.Open(i.ctx, func(n int) {
		at.Done += int64(n)
		if i.Progress != nil {
			i.Progress(*at)
		}
	})
	if err != nil {
		return nil, err
	}
	diff, err := stack.Apply(i.ctx, r)
	return diff, errors.Join(err, r.Close())
}

// usable refuses a tree that no sandbox can start from.
func (i *importer) usable(t *erofs.Tree) error {
	if len(t.Root.Names()) == 0 {
		return fault.New(fault.Invalid, "there are no files in it")
	}
	return checkMachine(t, i.Platform)
}

// Pack writes the directory at path as a tar that [ImportStream] makes the same
// image of as [Import] would, sockets apart: for a caller who may read what the
// store's process may not. An OCI layout is packed as it is.
func Pack(ctx context.Context, w io.Writer, path string) error {
	d, err := erofs.Scan(ctx, path)
	if err != nil {
		return err
	}
	return errors.Join(layer.Pack(ctx, w, &d.Tree), d.Close())
}
