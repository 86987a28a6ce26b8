// Package version says which build of sandtree this is.
package version

import "runtime/debug"

// stamped is set by the Makefile: -ldflags "-X …/internal/version.stamped=v1.2.3".
var stamped string

// String returns the version that the build was stamped with, else what the
// Go tool recorded: a module version, or the commit; else "devel".
func String() string {
	if stamped != "" {
		return stamped
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return "devel-" + s.Value[:min(12, len(s.Value))]
		}
	}
	return "devel"
}
