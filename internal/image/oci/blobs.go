package oci

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// maxJSON bounds manifests and configurations, in bytes.
const maxJSON = 8 << 20

// blobs are the files of a layout or an archive, by slash-separated name.
type blobs interface {
	// open returns a file and its size. A missing one is fs.ErrNotExist.
	open(name string) (io.ReadCloser, int64, error)
}

// readJSON reads a small file whole.
func readJSON(b blobs, name string) ([]byte, error) {
	r, size, err := b.open(name)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fault.New(fault.Invalid, "%s is missing: %w", name, err)
		}
		return nil, err
	}
	defer r.Close()
	if size > maxJSON {
		return nil, fault.New(fault.Invalid, "%s: %d bytes, up to %d are read", name, size, maxJSON)
	}
	buf := make([]byte, size)
	if _, err := io.ReadFull(r, buf); err != nil {
		return nil, named(name, err)
	}
	return buf, nil
}

// dirBlobs is a directory; symbolic links may not lead out of it.
type dirBlobs struct{ root *os.Root }

func (d dirBlobs) open(name string) (io.ReadCloser, int64, error) {
	// Not to wait for a writer if it is a FIFO.
	f, err := d.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, err
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fault.New(fault.Invalid, "%s is no regular file", name)
	}
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, st.Size(), nil
}

// tarBlobs is an uncompressed tar file whose entries were found once.
type tarBlobs struct {
	f       io.ReaderAt
	entries map[string]tarEntry
}

type tarEntry struct {
	off, size int64
	link      string // the name that this one stands for
}

// maxArchive bounds the number of files in an archive.
const maxArchive = 100_000

// indexTar finds the entries of a tar file.
func indexTar(ctx context.Context, f io.ReaderAt, size int64) (*tarBlobs, error) {
	b := &tarBlobs{f: f, entries: map[string]tarEntry{}}
	at := io.NewSectionReader(f, 0, size)
	for t := tar.NewReader(at); ; {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		h, err := t.Next()
		if err == io.EOF {
			return b, nil
		}
		if err != nil {
			return nil, invalid("read tar", err)
		}
		if len(b.entries) == maxArchive {
			return nil, fault.New(fault.Invalid, "archive of more than %d files", maxArchive)
		}
		name := path.Clean("/" + h.Name)[1:]
		switch h.Typeflag {
		case tar.TypeReg:
			off, err := at.Seek(0, io.SeekCurrent)
			if err != nil {
				return nil, err
			}
			if h.Size > size-off {
				return nil, fault.New(fault.Invalid, "archive is truncated in %s", name)
			}
			b.entries[name] = tarEntry{off: off, size: h.Size}
		case tar.TypeLink:
			b.entries[name] = tarEntry{link: path.Clean("/" + h.Linkname)[1:]}
		case tar.TypeSymlink:
			b.entries[name] = tarEntry{link: path.Join("/", path.Dir(name), h.Linkname)[1:]}
		}
	}
}

func (b *tarBlobs) open(name string) (io.ReadCloser, int64, error) {
	name = path.Clean("/" + name)[1:]
	for range 8 {
		e, ok := b.entries[name]
		if !ok {
			break
		}
		if e.link == "" {
			return io.NopCloser(io.NewSectionReader(b.f, e.off, e.size)), e.size, nil
		}
		name = e.link
	}
	return nil, 0, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}

// has reports whether there is a file of that name.
func has(b blobs, name string) bool {
	r, _, err := b.open(name)
	if err != nil {
		return false
	}
	r.Close()
	return true
}
