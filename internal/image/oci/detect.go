package oci

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path"
	"regexp"
	"strings"

	"github.com/sandtree/sandtree/internal/image/cause"
)

// archiveName matches the first part of every name in an archive of an image.
var archiveName = regexp.MustCompile(`^(blobs|oci-layout|index\.json|manifest\.json|repositories|[0-9a-f]{64}(\.json|\.tar|\.tar\.gz)?|sha256[:_].*)$`)

// looksLike reads a tar until it is clear whether it is an archive of an image
// or a root file system: the latter has names that no archive has.
func looksLike(r io.Reader) (archive, compressed bool, err error) {
	s := &checked{r: r}
	plain, end, err := decompress(s)
	if err != nil {
		return false, false, err
	}
	defer end()
	_, compressed = plain.(damaged)
	for t := tar.NewReader(plain); ; {
		h, err := t.Next()
		if err == io.EOF {
			return false, compressed, nil
		}
		if err != nil {
			return false, false, cause.Tar(err)
		}
		first, _, _ := strings.Cut(path.Clean("/" + h.Name)[1:], "/")
		switch {
		case first == "":
		case first == "oci-layout", first == "index.json", first == "manifest.json":
			return true, compressed, nil
		case !archiveName.MatchString(first):
			return false, compressed, nil
		}
	}
}

// OpenStream finds the image in a tar that comes as a stream, in any of the forms
// that [Open] knows. The tar of a root file system is read on while its layer
// is; an archive is kept in a nameless file in tmp. size is the stream's length if
// it is known, else 0. The caller closes the image, and r after that.
func OpenStream(ctx context.Context, r io.Reader, size int64, tmp string, want Want) (*Image, error) {
	img, err := openStream(ctx, cause.Reader{Ctx: ctx, R: r}, size, tmp, want)
	return img, cause.System(err)
}

func openStream(ctx context.Context, r io.Reader, size int64, tmp string, want Want) (*Image, error) {
	head := &recorder{r: r}
	archive, _, err := looksLike(head)
	if err != nil && !head.full {
		return nil, err
	}
	whole := io.MultiReader(bytes.NewReader(head.seen), r)
	if archive || head.full {
		return unpacked(ctx, whole, tmp, want)
	}
	return &Image{Platform: want.Platform, Layers: []Layer{{
		Size: size, open: func(context.Context) (io.ReadCloser, error) { return io.NopCloser(whole), nil },
	}}}, nil
}

// recorder keeps what was read of a stream, and ends when that is too much.
type recorder struct {
	r    io.Reader
	seen []byte
	full bool
}

// maxHead is how much of a stream may be read before it is clear what it is, in
// bytes. The tar of a root file system shows it at once.
const maxHead = 8 << 20

func (h *recorder) Read(p []byte) (int, error) {
	if h.full = len(h.seen) >= maxHead; h.full {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := h.r.Read(p)
	h.seen = append(h.seen, p[:n]...)
	return n, err
}

// unpacked opens an archive that is kept in a file of its own.
func unpacked(ctx context.Context, r io.Reader, tmp string, want Want) (*Image, error) {
	f, err := unpack(r, tmp)
	if err != nil {
		return nil, err
	}
	img, err := openArchive(ctx, f, want)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	img.close = f.Close
	return img, nil
}

// unpack decompresses into a file without a name.
func unpack(r io.Reader, tmp string) (*os.File, error) {
	plain, end, err := decompress(r)
	if err != nil {
		return nil, err
	}
	defer end()
	f, err := os.CreateTemp(tmp, "archive-")
	if err != nil {
		return nil, err
	}
	err = os.Remove(f.Name())
	if err == nil {
		_, err = io.Copy(f, plain)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
