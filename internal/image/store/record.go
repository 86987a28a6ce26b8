package store

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/sandtree/sandtree/internal/fault"
)

// Record is one image.
type Record struct {
	// ID is the image's own, im-….
	ID string `json:"id"`
	// Name is what the user calls it; one image has it.
	Name string `json:"name"`
	// Source is where it came from: a path, or a registry's reference.
	Source string `json:"source"`
	// Platform is os/architecture, with /variant where there is one.
	Platform string `json:"platform"`
	// Layers are the image's, the lowest first.
	Layers []Layer `json:"layers"`
	// Config is how its programs start.
	Config Config `json:"config"`
	// Created is when it was put into the store.
	Created time.Time `json:"created"`
}

// Layer is one EROFS image in the store.
type Layer struct {
	// Digest is "sha256:" and 64 hexadecimal digits, of the layer's bytes.
	Digest string `json:"digest"`
	// Size is in bytes.
	Size int64 `json:"size"`
}

// Config is the part of an OCI image's configuration that starts programs.
type Config struct {
	// Env holds NAME=value.
	Env        []string `json:"env,omitempty"`
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	WorkingDir string   `json:"working_dir,omitempty"`
	// User is a name or number, with :group if need be.
	User string `json:"user,omitempty"`
}

// Size returns the sum of the layers' sizes, in bytes.
func (r *Record) Size() int64 {
	var n int64
	for _, l := range r.Layers {
		n += l.Size
	}
	return n
}

const maxName = 255

var idForm = regexp.MustCompile(`^im-[a-z2-7]{1,64}$`)

// CheckName returns an error of kind Invalid for what cannot be an image's
// name: empty, longer than 255 bytes, with spaces or control characters, with
// a leading dash, or in the form of an id.
func CheckName(name string) error {
	switch {
	case name == "":
		return fault.New(fault.Invalid, "image name: empty")
	case len(name) > maxName:
		return fault.New(fault.Invalid, "image name %.40q…: longer than %d bytes", name, maxName)
	case strings.HasPrefix(name, "-"), idForm.MatchString(name):
		return fault.New(fault.Invalid, "image name %q: looks like an option or an id", name)
	case strings.ContainsFunc(name, func(r rune) bool {
		return r == unicode.ReplacementChar || unicode.IsSpace(r) || !unicode.IsPrint(r)
	}):
		return fault.New(fault.Invalid, "image name %q: has spaces or characters that cannot be printed", name)
	}
	return nil
}

// check returns an error of kind Internal for a record that no store writes.
func (r *Record) check() error {
	if !idForm.MatchString(r.ID) {
		return fault.New(fault.Internal, "image record: id %q", r.ID)
	}
	if err := CheckName(r.Name); err != nil {
		return fault.New(fault.Internal, "image record %s: %w", r.ID, err)
	}
	for _, l := range r.Layers {
		if _, err := layerFile(l.Digest); err != nil {
			return fault.New(fault.Internal, "image record %s: %w", r.ID, err)
		}
	}
	return nil
}

func decode(b []byte) (Record, error) {
	var r Record
	if err := json.Unmarshal(b, &r); err != nil {
		return Record{}, fault.New(fault.Internal, "image record: %w", err)
	}
	return r, r.check()
}

// byName orders records for lists.
func byName(rs []Record) {
	slices.SortFunc(rs, func(a, b Record) int { return strings.Compare(a.Name, b.Name) })
}
