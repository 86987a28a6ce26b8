package oci

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/sandtree/sandtree/internal/fault"
)

const (
	// refName is the annotation that names an image in a layout's index.
	refName = "org.opencontainers.image.ref.name"
	// attestation marks what BuildKit puts beside images in an index.
	attestation = "vnd.docker.reference.type"
	// maxIndexDepth is how deep indexes may lie in indexes.
	maxIndexDepth = 4
)

// candidate is an image manifest that an index lists.
type candidate struct {
	digest   v1.Hash
	platform string // "" if the index does not say
	name     string
}

// parseConfig reads an image's configuration.
func parseConfig(raw []byte) (*v1.ConfigFile, error) {
	c, err := v1.ParseConfigFile(bytes.NewReader(raw))
	if err != nil {
		return nil, invalid("image configuration", err)
	}
	return c, nil
}

// blobName is where a layout keeps a blob.
func blobName(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }

// readBlob reads a small blob and checks its digest.
func readBlob(b blobs, h v1.Hash) ([]byte, error) {
	if err := checkHash(h); err != nil {
		return nil, err
	}
	raw, err := readJSON(b, blobName(h))
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(raw); hex.EncodeToString(sum[:]) != h.Hex {
		return nil, fault.New(fault.Invalid, "%s: its digest is sha256:%x: it is damaged", blobName(h), sum)
	}
	return raw, nil
}

// openLayout finds the image of a layout.
func openLayout(b blobs, want Want) (*Image, error) {
	raw, err := readJSON(b, "index.json")
	if err != nil {
		return nil, err
	}
	all, err := candidates(b, raw, 0)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if all[i].platform == "" {
			if all[i].platform, err = platformOf(b, all[i].digest); err != nil {
				return nil, err
			}
		}
	}
	c, err := choose(all, want)
	if err != nil {
		return nil, err
	}
	m, err := readManifest(b, c.digest)
	if err != nil {
		return nil, err
	}
	config, err := readBlob(b, m.Config.Digest)
	if err != nil {
		return nil, err
	}
	layers := make([]Layer, len(m.Layers))
	for i, d := range m.Layers {
		if err := checkHash(d.Digest); err != nil {
			return nil, err
		}
		layers[i] = blobLayer(b, blobName(d.Digest), d.Digest, d.Size)
	}
	return fromConfig(config, want.Platform, layers)
}

// candidates lists the images of an index and of those in it.
func candidates(b blobs, raw []byte, depth int) ([]candidate, error) {
	index, err := v1.ParseIndexManifest(bytes.NewReader(raw))
	if err != nil {
		return nil, invalid("image index", err)
	}
	if depth == maxIndexDepth {
		return nil, fault.New(fault.Invalid, "image index: more than %d in one another", maxIndexDepth)
	}
	var all []candidate
	for _, d := range index.Manifests {
		if !d.MediaType.IsIndex() {
			all = append(all, fromDescriptor(d)...)
			continue
		}
		raw, err := readBlob(b, d.Digest)
		if err != nil {
			return nil, err
		}
		inner, err := candidates(b, raw, depth+1)
		if err != nil {
			return nil, err
		}
		for _, c := range inner {
			if name := d.Annotations[refName]; name != "" {
				c.name = name
			}
			all = append(all, c)
		}
	}
	return all, nil
}

// fromDescriptor makes a candidate of an index's entry if it is an image.
func fromDescriptor(d v1.Descriptor) []candidate {
	if !d.MediaType.IsImage() || d.Annotations[attestation] != "" {
		return nil
	}
	c := candidate{digest: d.Digest, name: d.Annotations[refName]}
	if p := d.Platform; p != nil && p.Architecture != "" && p.Architecture != "unknown" {
		c.platform = platform(p.OS, p.Architecture, p.Variant)
	}
	return []candidate{c}
}

// choose takes the one image that fits.
func choose(all []candidate, want Want) (candidate, error) {
	var fit []candidate
	var platforms, names []string
	for _, c := range all {
		if want.Reference != "" && c.name != want.Reference {
			names = append(names, c.name)
			continue
		}
		platforms = append(platforms, c.platform)
		if runsOn(c.platform, want.Platform) && !contains(fit, c.digest) {
			fit = append(fit, c)
		}
	}
	switch {
	case len(fit) == 1:
		return fit[0], nil
	case len(fit) > 1:
		for _, c := range fit {
			names = append(names, c.name)
		}
		return candidate{}, fault.New(fault.Invalid, "%d images for %s: %s", len(fit), want.Platform, strings.Join(names, ", ")).
			WithHint("say which one by its name")
	case len(platforms) > 0:
		return candidate{}, wrongPlatform(platforms, want.Platform)
	case want.Reference != "":
		return candidate{}, fault.New(fault.Invalid, "no image %q among %q", want.Reference, names)
	}
	return candidate{}, fault.New(fault.Invalid, "no image in it")
}

func contains(cs []candidate, h v1.Hash) bool {
	for _, c := range cs {
		if c.digest == h {
			return true
		}
	}
	return false
}

// readManifest reads an image manifest.
func readManifest(b blobs, h v1.Hash) (*v1.Manifest, error) {
	raw, err := readBlob(b, h)
	if err != nil {
		return nil, err
	}
	m, err := v1.ParseManifest(bytes.NewReader(raw))
	if err != nil {
		return nil, invalid("image manifest", err)
	}
	if !m.Config.MediaType.IsConfig() {
		return nil, fault.New(fault.Invalid, "artifact of type %.100q: not an image of a file system", m.Config.MediaType)
	}
	return m, nil
}

// platformOf reads an image's platform from its configuration.
func platformOf(b blobs, h v1.Hash) (string, error) {
	m, err := readManifest(b, h)
	if err != nil {
		return "", err
	}
	raw, err := readBlob(b, m.Config.Digest)
	if err != nil {
		return "", err
	}
	c, err := parseConfig(raw)
	if err != nil {
		return "", err
	}
	return platform(c.OS, c.Architecture, c.Variant), nil
}

// blobLayer is a layer that lies among blobs.
func blobLayer(b blobs, name string, digest v1.Hash, size int64) Layer {
	return Layer{Size: size, digest: digest, open: func(context.Context) (io.ReadCloser, error) {
		r, _, err := b.open(name)
		if err != nil {
			return nil, invalid("layer", err)
		}
		return r, nil
	}}
}
