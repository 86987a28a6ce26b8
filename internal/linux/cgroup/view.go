package cgroup

import (
	"os"
	"path/filepath"
)

// inside is where programs look for their limits.
const inside = "/sys/fs/cgroup"

// Bind is a directory of the host to show inside a sandbox.
type Bind struct {
	HostPath   string
	InsidePath string
}

// View lists what a sandbox is shown of its group, in the shape of the host:
// on v2 the group's directory at /sys/fs/cgroup; with v1 controllers one
// directory per hierarchy, such as /sys/fs/cgroup/memory, on a tmpfs, and
// links (alias names such as cpu for cpu,cpuacct) from [Group.ViewLinks].
//
// Bind them read-only, without recursion, after the process that makes the
// mounts is in the group. Where it has unshared its cgroup namespace then
// (CLONE_NEWCGROUP), a new mount of type cgroup2, or cgroup with the
// controllers as option, shows the same directory as its root, and
// /proc/self/cgroup names it "/"; that needs no path of the host.
func (g *Group) View() []Bind {
	if len(g.layout.v1) == 0 {
		return []Bind{{g.unified, inside}}
	}
	binds := []Bind{{g.unified, filepath.Join(inside, "unified")}}
	for _, d := range g.v1 {
		binds = append(binds, Bind{d.path, filepath.Join(inside, filepath.Base(d.mount))})
	}
	return binds
}

// ViewLinks lists symbolic links, link path to target, that a v1 view has
// beside its binds: a host that mounts cpu,cpuacct together has a link for
// each of the two names.
func (g *Group) ViewLinks() map[string]string {
	links := map[string]string{}
	for _, d := range g.v1 {
		base := filepath.Base(d.mount)
		for _, c := range d.controllers {
			name := string(c)
			if name == base {
				continue
			}
			if t, err := os.Readlink(filepath.Join(filepath.Dir(d.mount), name)); err == nil && filepath.Base(t) == base {
				links[filepath.Join(inside, name)] = base
			}
		}
	}
	return links
}
