package oci

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/sandtree/sandtree/internal/fault"
)

// Image is an image that was found, with its layers still unread.
type Image struct {
	// Platform is os/architecture, with /variant where there is one.
	Platform string
	// Config is how its programs start.
	Config Config
	// Layers are the image's, the lowest first.
	Layers []Layer

	close func() error
}

// Config is the part of the image's configuration that starts programs. The
// fields are those of the image specification.
type Config struct {
	Env        []string
	Entrypoint []string
	Cmd        []string
	WorkingDir string
	User       string
}

// Layer is one layer of an image.
type Layer struct {
	// Size is how many bytes there are to read, as they are stored: mostly
	// compressed.
	Size int64

	digest v1.Hash // of the stored bytes; zero if unknown
	diffID v1.Hash // of the tar stream; zero if unknown
	open   func(context.Context) (io.ReadCloser, error)
}

// Close frees what was kept open for the layers.
func (i *Image) Close() error {
	if i.close == nil {
		return nil
	}
	return i.close()
}

// Open opens the layer's tar stream. Reading it to the end checks it; an error
// is of kind Invalid if it is damaged. read, which may be nil, is told the number
// of stored bytes whenever some were read.
func (l Layer) Open(ctx context.Context, read func(int)) (io.ReadCloser, error) {
	raw, err := l.open(ctx)
	if err != nil {
		return nil, err
	}
	return newStream(raw, l.digest, l.diffID, read)
}

// ParsePlatform returns a platform in its usual form, or an error of kind
// Invalid.
func ParsePlatform(s string) (string, error) {
	p, err := v1.ParsePlatform(s)
	if err != nil || p.OS == "" || p.Architecture == "" {
		return "", fault.New(fault.Invalid, "platform %.100q: not like linux/amd64", s)
	}
	return platform(p.OS, p.Architecture, p.Variant), nil
}

// platform puts the parts together. A variant that an architecture has anyway
// is left out, so that equal platforms compare equal.
func platform(os, arch, variant string) string {
	s := os + "/" + arch
	switch {
	case variant == "", arch == "arm64" && variant == "v8", arch == "amd64" && variant == "v1":
		return s
	}
	return s + "/" + variant
}

// runsOn reports whether an image for one platform runs on another: an image
// without a variant runs on all.
func runsOn(image, machine string) bool {
	return image == machine || strings.HasPrefix(machine, image+"/")
}

// fromConfig makes an image of its configuration and checks it for the
// platform and the number of layers.
func fromConfig(raw []byte, want string, layers []Layer) (*Image, error) {
	c, err := parseConfig(raw)
	if err != nil {
		return nil, err
	}
	p := platform(c.OS, c.Architecture, c.Variant)
	if !runsOn(p, want) {
		return nil, wrongPlatform([]string{p}, want)
	}
	if len(c.RootFS.DiffIDs) != len(layers) {
		return nil, fault.New(fault.Invalid, "image has %d layers, its configuration names %d", len(layers), len(c.RootFS.DiffIDs))
	}
	for i := range layers {
		layers[i].diffID = c.RootFS.DiffIDs[i]
		if err := checkHash(layers[i].diffID); err != nil {
			return nil, err
		}
	}
	return &Image{Platform: p, Layers: layers, Config: Config{
		Env: c.Config.Env, Entrypoint: c.Config.Entrypoint, Cmd: c.Config.Cmd,
		WorkingDir: c.Config.WorkingDir, User: c.Config.User,
	}}, nil
}

// wrongPlatform is the error for an image that has other platforms only.
func wrongPlatform(have []string, want string) error {
	slices.Sort(have)
	return fault.New(fault.Invalid, "image is for %s, not for %s", strings.Join(slices.Compact(have), ", "), want)
}

// checkHash refuses digests whose algorithm is not computed here.
func checkHash(h v1.Hash) error {
	if h.Algorithm != "sha256" || len(h.Hex) != 64 {
		return fault.New(fault.Invalid, "digest %.100q: sha256 alone is known", h)
	}
	return nil
}

// invalid wraps an error of parsing.
func invalid(what string, err error) error {
	return fault.New(fault.Invalid, "%s: %w", what, err)
}

// named prefixes an error with what it is about and keeps its kind.
func named(what string, err error) error { return fmt.Errorf("%s: %w", what, err) }
