package oci

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/image/cause"
)

// Remote finds an image in a registry. The reference is as docker's: a missing
// registry is docker.io, a missing tag latest. Credentials come from docker's
// configuration of the user the process runs as. Plain HTTP is spoken with
// this machine, and with others if insecure. ctx also ends the reading of layers.
//
// Errors are of kind Invalid for what is no reference or no image for the
// platform, NotFound, Permission, and Unavailable for a registry that does not
// answer.
func Remote(ctx context.Context, reference, wantPlatform string, insecure bool) (*Image, error) {
	var opts []name.Option
	rt := remote.DefaultTransport
	if insecure {
		opts = append(opts, name.Insecure)
	} else {
		rt = loopbackHTTP{rt}
	}
	ref, err := name.ParseReference(reference, opts...)
	if err != nil {
		return nil, invalid("image reference", err)
	}
	img, err := find(ctx, ref, wantPlatform, rt)
	if err != nil {
		return nil, named("registry image "+ref.Name(), remoteError(ctx, err))
	}
	return img, nil
}

func find(ctx context.Context, ref name.Reference, wantPlatform string, rt http.RoundTripper) (*Image, error) {
	d, err := remote.Get(ref, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain),
		remote.WithTransport(rt), remote.WithUserAgent("sandtree"))
	if err != nil {
		return nil, err
	}
	if !d.MediaType.IsIndex() {
		img, err := d.Image()
		if err != nil {
			return nil, err
		}
		return fromRemote(ctx, img, wantPlatform)
	}
	index, err := d.ImageIndex()
	if err != nil {
		return nil, err
	}
	m, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	var all []candidate
	for _, d := range m.Manifests {
		all = append(all, fromDescriptor(d)...)
	}
	c, err := choose(all, Want{Platform: wantPlatform})
	if err != nil {
		return nil, err
	}
	img, err := index.Image(c.digest)
	if err != nil {
		return nil, err
	}
	return fromRemote(ctx, img, wantPlatform)
}

// fromRemote lists the layers of an image in a registry. The library checks
// the digests of manifest and configuration.
func fromRemote(ctx context.Context, img v1.Image, wantPlatform string) (*Image, error) {
	m, err := img.Manifest()
	if err != nil {
		return nil, err
	}
	if !m.Config.MediaType.IsConfig() {
		return nil, fault.New(fault.Invalid, "artifact of type %.100q: not an image of a file system", m.Config.MediaType)
	}
	if m.Config.Size > maxJSON {
		return nil, fault.New(fault.Invalid, "configuration of %d bytes, up to %d are read", m.Config.Size, maxJSON)
	}
	config, err := img.RawConfigFile()
	if err != nil {
		return nil, err
	}
	var layers []Layer
	for _, d := range m.Layers {
		if err := checkHash(d.Digest); err != nil {
			return nil, err
		}
		layers = append(layers, Layer{Size: d.Size, digest: d.Digest, open: func(context.Context) (io.ReadCloser, error) {
			l, err := img.LayerByDigest(d.Digest)
			if err != nil {
				return nil, remoteError(ctx, err)
			}
			r, err := l.Compressed()
			if err != nil {
				return nil, remoteError(ctx, err)
			}
			return remoteBody{ctx, r}, nil
		}})
	}
	return fromConfig(config, wantPlatform, layers)
}

// remoteBody gives errors of a transfer a kind.
type remoteBody struct {
	ctx context.Context
	io.ReadCloser
}

func (b remoteBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		err = remoteError(b.ctx, err)
	}
	return n, err
}

// remoteError gives an error of a registry a kind.
func remoteError(ctx context.Context, err error) error {
	var f *fault.Error
	var t *transport.Error
	if cerr := ctx.Err(); cerr != nil {
		return cause.System(cerr)
	}
	switch {
	case errors.As(err, &f):
		return err
	case errors.As(err, &t) && (t.StatusCode == http.StatusUnauthorized || t.StatusCode == http.StatusForbidden):
		return fault.New(fault.Permission, "%w", err).WithHint("log in to the registry with docker login, or check the name: some registries say so of images that do not exist")
	case errors.As(err, &t) && t.StatusCode == http.StatusNotFound:
		return fault.New(fault.NotFound, "%w", err)
	case strings.Contains(err.Error(), "error verifying"): // the library's type for it is internal
		return fault.New(fault.Invalid, "what the registry sent is damaged: %w", err)
	}
	return fault.New(fault.Unavailable, "%w", err)
}

// loopbackHTTP refuses plain HTTP to other machines, which the library would
// speak with private addresses too.
type loopbackHTTP struct{ http.RoundTripper }

func (l loopbackHTTP) RoundTrip(r *http.Request) (*http.Response, error) {
	if host := r.URL.Hostname(); r.URL.Scheme != "https" && host != "localhost" {
		if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
			return nil, fault.New(fault.Unavailable, "registry %s: it answers without TLS, which is for this machine alone", host)
		}
	}
	return l.RoundTripper.RoundTrip(r)
}
