package lifecycle

import (
	"maps"
	"regexp"
	"strings"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/node/id"
	"github.com/sandtree/sandtree/internal/store"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

var (
	nameForm     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`)
	hostnameForm = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$`)
	envForm      = regexp.MustCompile(`^[^=\x00-\x1f\x7f]+$`)
)

// checkName refuses, with Invalid, what cannot be a name of a thing of that
// kind.
func checkName(kind, name string) error {
	switch {
	case !nameForm.MatchString(name):
		return fault.New(fault.Invalid, "%s name %.80q: not 1 to 63 letters, digits, dots, dashes and underscores that begin with a letter or digit", kind, name)
	case id.Looks(name):
		return fault.New(fault.Invalid, "%s name %q: has the form of an id", kind, name)
	}
	return nil
}

// check refuses options that can never work.
func (o *CreateOptions) check() error {
	if o.Name != "" {
		if err := checkName("sandbox", o.Name); err != nil {
			return err
		}
	}
	if o.Hostname != "" && !hostnameForm.MatchString(o.Hostname) {
		return fault.New(fault.Invalid, "hostname %.80q: not 1 to 63 letters, digits and dashes", o.Hostname)
	}
	if err := checkEnv(o.Env); err != nil {
		return err
	}
	return checkResources(o.Resources)
}

func checkEnv(env map[string]string) error {
	for k, v := range env {
		if !envForm.MatchString(k) || strings.Contains(v, "\x00") {
			return fault.New(fault.Invalid, "environment variable %.80q: the name is empty or has an equals sign or a control character, or there is a NUL byte", k)
		}
	}
	return nil
}

// Least bounds that a sandbox can live with.
const (
	minMemory = 4 << 20
	minDisk   = 1 << 20
)

func checkResources(r control.Resources) error {
	switch {
	case r.MemoryBytes < 0, r.MemoryBytes > 0 && r.MemoryBytes < minMemory:
		return fault.New(fault.Invalid, "memory of %d bytes: at least %d are needed", r.MemoryBytes, minMemory)
	case r.DiskBytes < 0, r.DiskBytes > 0 && r.DiskBytes < minDisk:
		return fault.New(fault.Invalid, "disk of %d bytes: at least %d are needed", r.DiskBytes, minDisk)
	case r.CPUs != 0 && !(r.CPUs >= 0.01 && r.CPUs <= 1<<16): // NaN is refused too
		return fault.New(fault.Invalid, "%v CPUs: not 0.01 to 65536", r.CPUs)
	case r.PIDs < 0:
		return fault.New(fault.Invalid, "%d pids: negative", r.PIDs)
	}
	return nil
}

// override returns base with what o says instead.
func override(base, o control.Resources) control.Resources {
	if o.MemoryBytes != 0 {
		base.MemoryBytes = o.MemoryBytes
	}
	if o.CPUs != 0 {
		base.CPUs = o.CPUs
	}
	if o.PIDs != 0 {
		base.PIDs = o.PIDs
	}
	if o.DiskBytes != 0 {
		base.DiskBytes = o.DiskBytes
	}
	return base
}

// merge returns the union of environments; the later win.
func merge(envs ...map[string]string) map[string]string {
	all := map[string]string{}
	for _, e := range envs {
		maps.Copy(all, e)
	}
	if len(all) == 0 {
		return nil
	}
	return all
}

// hostname makes a host name of a sandbox's name or id.
func hostname(rec store.Sandbox) string {
	if hostnameForm.MatchString(rec.Name) {
		return rec.Name
	}
	return rec.ID
}
