package oci

import (
	"encoding/json"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/sandtree/sandtree/internal/fault"
)

// saved is an image in manifest.json of `docker save`.
type saved struct {
	Config   string
	RepoTags []string
	Layers   []string
}

// openSaved finds the image of an archive of `docker save`.
func openSaved(b blobs, want Want) (*Image, error) {
	raw, err := readJSON(b, "manifest.json")
	if err != nil {
		return nil, err
	}
	var all []saved
	if err := json.Unmarshal(raw, &all); err != nil {
		return nil, invalid("manifest.json", err)
	}
	var names []string
	for _, s := range all {
		names = append(names, s.RepoTags...)
	}
	if want.Reference != "" {
		all = slices.DeleteFunc(all, func(s saved) bool { return !slices.Contains(s.RepoTags, want.Reference) })
	}
	switch {
	case len(all) == 0:
		return nil, fault.New(fault.Invalid, "no image %q among %q", want.Reference, names)
	case len(all) > 1:
		return nil, fault.New(fault.Invalid, "%d images: %s", len(all), strings.Join(names, ", ")).WithHint("say which one by its name")
	}
	config, err := readJSON(b, all[0].Config)
	if err != nil {
		return nil, err
	}
	var layers []Layer
	for _, name := range all[0].Layers {
		r, size, err := b.open(name)
		if err != nil {
			return nil, invalid("layer", err)
		}
		if err := r.Close(); err != nil {
			return nil, err
		}
		layers = append(layers, blobLayer(b, name, v1.Hash{}, size))
	}
	return fromConfig(config, want.Platform, layers)
}
