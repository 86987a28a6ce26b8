package cgroup

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// Layout says where this machine has its hierarchies.
type Layout struct {
	unified hierarchy
	v1      []hierarchy
}

// hierarchy is one cgroup tree.
type hierarchy struct {
	v2          bool
	mount       string       // where it is mounted
	base        string       // directory below which parents are made
	controllers []Controller // those of ours that it has
}

// Version is a cgroup version, 1 or 2; 0 means that no hierarchy has the
// controller.
type Version int

// Detect finds the hierarchies from /proc/self/mountinfo and
// /proc/self/cgroup.
//
// Parents are made in the group that the service manager delegated to us
// (trusted.delegate or user.delegate on our own group, systemd's
// Delegate=yes), else at the top of what is mounted: the group of a login
// session ends with the session.
//
// It fails with [fault.Unsupported] where v2 is mounted nowhere, and with
// [fault.Permission] where it is read-only.
func Detect() (Layout, error) {
	info, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return Layout{}, fault.New(fault.Internal, "find cgroup hierarchies: %w", err)
	}
	self, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return Layout{}, fault.New(fault.Internal, "find own cgroups: %w", err)
	}
	l, err := detect(string(info), string(self), delegated)
	if err != nil {
		return Layout{}, err
	}
	avail, err := os.ReadFile(filepath.Join(l.unified.base, "cgroup.controllers"))
	if err != nil {
		return Layout{}, fault.New(fault.Internal, "find v2 controllers: %w", err)
	}
	for _, c := range strings.Fields(string(avail)) {
		if slices.Contains(controllers, Controller(c)) && l.Version(Controller(c)) == 0 {
			l.unified.controllers = append(l.unified.controllers, Controller(c))
		}
	}
	return l, nil
}

// detect is Detect without the files; isDelegated tells whether a group was
// delegated to us.
func detect(mountinfo, self string, isDelegated func(dir string) bool) (Layout, error) {
	ms, err := parseMounts(mountinfo)
	if err != nil {
		return Layout{}, err
	}
	own, err := parseSelf(self)
	if err != nil {
		return Layout{}, err
	}
	var l Layout
	readOnly := ""
	for _, m := range ms {
		if m.readOnly {
			if m.v2 {
				readOnly = m.point
			}
			continue
		}
		h := hierarchy{v2: m.v2, mount: m.point, base: m.point}
		key := ""
		if !m.v2 {
			for _, c := range controllers {
				if hasOption(m.options, string(c)) && l.Version(c) == 0 {
					h.controllers = append(h.controllers, c)
					key = string(c)
				}
			}
			if len(h.controllers) == 0 {
				continue
			}
		} else if l.unified.mount != "" {
			continue
		}
		if rel, ok := within(own[key], m.root); ok {
			for ; rel != "/" && rel != ""; rel = above(rel) {
				if dir := filepath.Join(m.point, rel); isDelegated(dir) {
					h.base = dir
					break
				}
			}
		}
		if m.v2 {
			l.unified = h
		} else {
			l.v1 = append(l.v1, h)
		}
	}
	switch {
	case l.unified.mount != "":
		return l, nil
	case readOnly != "":
		return Layout{}, fault.New(fault.Permission, "the cgroup v2 hierarchy at %s is mounted read-only", readOnly).
			WithHint("give the container that sandtree runs in a writable cgroup file system")
	}
	return Layout{}, fault.New(fault.Unsupported, "no cgroup v2 hierarchy is mounted").
		WithHint("mkdir -p /sys/fs/cgroup/unified && mount -t cgroup2 none /sys/fs/cgroup/unified")
}

// above returns the group that the daemon's own groups around path are in, or
// "/": a supervisor in one of them, or a process that was moved into the leaf
// beside ours, has the base of the process that made them.
func above(path string) string {
	if i := strings.LastIndex(path, "/"+namePrefix); i > 0 {
		return path[:i]
	}
	return "/"
}

// within returns path relative to root, with a slash in front.
func within(path, root string) (string, bool) {
	if path == "" {
		return "", false
	}
	if root == "/" {
		return path, true
	}
	rel, ok := strings.CutPrefix(path, root)
	if !ok || rel != "" && rel[0] != '/' {
		return "", false
	}
	return "/" + strings.TrimPrefix(rel, "/"), true
}

func delegated(dir string) bool {
	for _, attr := range []string{"trusted.delegate", "user.delegate"} {
		var v [2]byte
		if n, err := unix.Getxattr(dir, attr, v[:]); err == nil && n == 1 && v[0] == '1' {
			return true
		}
	}
	return false
}

// Version tells which version has a controller.
func (l Layout) Version(c Controller) Version {
	if slices.Contains(l.unified.controllers, c) {
		return 2
	}
	for _, h := range l.v1 {
		if slices.Contains(h.controllers, c) {
			return 1
		}
	}
	return 0
}

// Missing lists the controllers that no hierarchy has: limits that need them
// are refused.
func (l Layout) Missing() []Controller {
	var cs []Controller
	for _, c := range controllers {
		if l.Version(c) == 0 {
			cs = append(cs, c)
		}
	}
	return cs
}

// Unified is the mount point of the v2 hierarchy.
func (l Layout) Unified() string { return l.unified.mount }

// String names the layout: "v2", or "hybrid (v1: memory,cpu; v2: pids)".
func (l Layout) String() string {
	if len(l.v1) == 0 {
		return "v2"
	}
	var v1, v2 []string
	for _, c := range controllers {
		switch l.Version(c) {
		case 1:
			v1 = append(v1, string(c))
		case 2:
			v2 = append(v2, string(c))
		}
	}
	s := "hybrid (v1: " + strings.Join(v1, ",")
	if len(v2) > 0 {
		s += "; v2: " + strings.Join(v2, ",")
	}
	return s + ")"
}

// all is every hierarchy, v2 first.
func (l Layout) all() []hierarchy { return append([]hierarchy{l.unified}, l.v1...) }
