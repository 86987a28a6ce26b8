// Package architecture states which packages of this module may import which,
// and its test holds the module to it.
//
// The packages form layers. A package may import those of the layers below its
// own, and never a sibling: what two siblings need stands below both. Within
// one component (process and process/image) the parts may import each other.
// The linter's depguard rules say the same of single files while they are
// written; this test also sees packages that no rule names yet, and fails for
// them.
package architecture

import (
	"fmt"
	"slices"
	"strings"
)

// layers lists the components from the ground up, as directories below the
// module's root. A component is everything at and below its directory, except
// what a deeper entry names.
var layers = [][]string{
	{"internal/fault", "internal/version"},
	{"internal/linux", "internal/failpoint", "internal/wire"},
	{"internal/tracee"},
	{"internal/confine"}, // of booted and of restored processes, by the same calls
	{"internal/image", "internal/rootfs", "internal/process", "internal/network"},
	{"internal/durable", "internal/supervisor/control"},
	{"internal/worker/control"},
	{"internal/sandbox", "internal/tree"},
	{"internal/engine"},
	{"internal/store"},
	{"internal/supervisor", "internal/worker", "internal/host"},
	{"internal/node"},
	{"internal/cli"},
	{"cmd/sandtree"},
}

// beside lists the components that stand beside the layers, with all that
// they may import.
var beside = map[string][]string{
	"api":      nil,
	"client":   {"api", "internal/fault"},
	"demo":     {"client"},
	"examples": {"client", "demo"},
	"programs": {"client"},
	"scripts":  nil,
}

// reachesBeside lists what components in the layers may import from beside
// them.
var reachesBeside = map[string][]string{
	"internal/node": {"api"},
	"internal/cli":  {"api", "client"},
}

// forTests lists helpers of tests, which import what they need and are
// imported by tests alone.
var forTests = []string{"internal/architecture", "internal/testrootfs", "internal/testdaemon", "internal/soak"}

// unreachable lists what a component must not import even through others:
// the engine and what is below it know no HTTP, SQL, command line or cluster,
// and neither does the root part of the daemon.
var unreachable = map[string][]string{
	"internal/engine":     {"net/http", "database/sql", "github.com/spf13/cobra", "k8s.io/"},
	"internal/supervisor": {"net/http", "database/sql", "github.com/spf13/cobra", "k8s.io/"},
	"internal/host":       {"net/http", "database/sql", "github.com/spf13/cobra", "k8s.io/"},
}

// badNames are names of packages that say nothing of their purpose.
var badNames = []string{"pkg", "util", "utils", "common", "helper", "helpers", "types", "misc", "base"}

// place is where a package stands. Its layer is -1 beside the layers.
type place struct {
	component string
	layer     int
}

// placeOf finds the component that a directory belongs to: the deepest that
// is named above it.
func placeOf(dir string) (place, error) {
	var p place
	consider := func(c string, layer int) {
		if (dir == c || strings.HasPrefix(dir, c+"/")) && len(c) > len(p.component) {
			p = place{c, layer}
		}
	}
	for layer, cs := range layers {
		for _, c := range cs {
			consider(c, layer)
		}
	}
	for c := range beside {
		consider(c, -1)
	}
	for _, c := range forTests {
		consider(c, -1)
	}
	if p.component == "" {
		return p, fmt.Errorf("%s is in no layer; give it one in internal/architecture", dir)
	}
	return p, nil
}

// mayImport says why the package in directory from may not import the one in
// directory to, or nil.
func mayImport(from, to string) error {
	f, err := placeOf(from)
	if err != nil {
		return err
	}
	t, err := placeOf(to)
	if err != nil {
		return err
	}
	switch {
	case f.component == t.component, slices.Contains(forTests, f.component):
		return nil
	case slices.Contains(forTests, t.component):
		return fmt.Errorf("%s imports %s, which is for tests alone", from, to)
	case slices.Contains(beside[f.component], t.component), slices.Contains(reachesBeside[f.component], t.component):
		return nil
	case f.layer < 0, t.layer < 0:
		return fmt.Errorf("%s may not import %s", from, to)
	case f.layer == t.layer:
		return fmt.Errorf("%s imports its sibling %s", from, to)
	case f.layer < t.layer:
		return fmt.Errorf("%s imports %s, which is above it", from, to)
	}
	return nil
}
