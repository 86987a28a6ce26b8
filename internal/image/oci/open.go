package oci

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/image/cause"
)

// Want says which image of several is wanted.
type Want struct {
	// Platform is in the form of [ParsePlatform].
	Platform string
	// Reference is the name that the image has in its layout or archive; empty
	// if there is but one.
	Reference string
}

// IsDirectory reports whether path is a directory that is no OCI layout: the
// root of a file system.
func IsDirectory(path string) (bool, error) {
	st, err := os.Stat(path)
	if err != nil {
		return false, cause.System(err)
	}
	if !st.IsDir() {
		return false, nil
	}
	_, err = os.Stat(path + "/oci-layout")
	return errors.Is(err, fs.ErrNotExist), nil
}

// Open finds the image in a directory or file: an OCI layout, a tar of one, a
// tar of `docker save`, or a tar of a root file system, which is an image of
// one layer for the wanted platform. Tars may be compressed with gzip or zstd.
// Compressed archives are unpacked to a nameless file in tmp. The caller closes
// the image.
func Open(ctx context.Context, path, tmp string, want Want) (*Image, error) {
	img, err := open(ctx, path, tmp, want)
	if err != nil {
		return nil, named(path, cause.System(err))
	}
	return img, nil
}

func open(ctx context.Context, path, tmp string, want Want) (*Image, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	img, err := openFile(ctx, f, tmp, want)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return img, nil
}

// openFile takes f over if it succeeds.
func openFile(ctx context.Context, f *os.File, tmp string, want Want) (*Image, error) {
	st, err := f.Stat()
	switch {
	case err != nil:
		return nil, err
	case st.IsDir():
		return openDir(f, want)
	case !st.Mode().IsRegular():
		return nil, fault.New(fault.Invalid, "neither a directory nor a regular file")
	}
	whole := func() io.ReadCloser {
		return io.NopCloser(cause.Reader{Ctx: ctx, R: io.NewSectionReader(f, 0, st.Size())})
	}
	archive, compressed, err := looksLike(whole())
	if err != nil {
		return nil, err
	}
	if !archive {
		return &Image{Platform: want.Platform, close: f.Close, Layers: []Layer{{
			Size: st.Size(), open: func(context.Context) (io.ReadCloser, error) { return whole(), nil },
		}}}, nil
	}
	if compressed {
		img, err := unpacked(ctx, whole(), tmp, want)
		if err != nil {
			return nil, err
		}
		return img, f.Close()
	}
	img, err := openArchive(ctx, f, want)
	if err != nil {
		return nil, err
	}
	img.close = f.Close
	return img, nil
}

// openDir opens a layout's directory.
func openDir(f *os.File, want Want) (*Image, error) {
	root, err := os.OpenRoot(f.Name())
	if err != nil {
		return nil, err
	}
	img, err := openLayout(dirBlobs{root}, want)
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	img.close = func() error { return errors.Join(root.Close(), f.Close()) }
	return img, nil
}

func openArchive(ctx context.Context, f *os.File, want Want) (*Image, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	b, err := indexTar(ctx, f, st.Size())
	if err != nil {
		return nil, err
	}
	if has(b, "index.json") {
		return openLayout(b, want)
	}
	return openSaved(b, want)
}
