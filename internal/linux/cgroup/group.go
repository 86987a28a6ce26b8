package cgroup

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// Group holds the processes of one incarnation. Its methods may be called
// from several goroutines; [Group.Close] after all others.
type Group struct {
	id      string
	parent  *Parent
	layout  Layout
	unified string     // v2 directory
	v1      []v1dir    // joined v1 hierarchies
	dirFD   int        // v2 directory, O_PATH
	threads int        // cgroup.threads, read-only
	fence   fence      // cgroup.freeze and cgroup.events
	oom     int        // what tells OOM kills, read-only; -1: nothing does
	mu      sync.Mutex // guards limits, and those descriptors that are used until it is closed, by whoever
	limits  Limits     // as last set
}

// v1dir is the group's directory in one v1 hierarchy.
type v1dir struct {
	hierarchy
	path string
}

// NewGroup makes a group with limits. A hierarchy of the v1 CPU controller
// takes part only if CPU time is bounded, so that a group without a bound may
// hold real-time tasks (see [Group.AllowRealtime]).
//
// Errors: [fault.Exists], [fault.Unsupported] for a limit whose controller is
// nowhere, [fault.Invalid], [fault.Exhausted].
func (p *Parent) NewGroup(id string, limits Limits) (_ *Group, err error) {
	if err := checkName(id); err != nil {
		return nil, err
	}
	if err := limits.Check(); err != nil {
		return nil, err
	}
	if err := p.layout.supports(limits); err != nil {
		return nil, err
	}
	g := &Group{id: id, parent: p, layout: p.layout, dirFD: -1, threads: -1, oom: -1, fence: fence{freeze: -1, events: -1}}
	g.unified = filepath.Join(p.Path(), id)
	if err := os.Mkdir(g.unified, 0o755); errors.Is(err, fs.ErrExist) {
		return nil, fault.New(fault.Exists, "cgroup %s exists", g.unified)
	} else if err != nil {
		return nil, makeError(g.unified, err)
	}
	defer func() {
		if err != nil {
			_ = g.Remove(context.Background())
			g.Close()
		}
	}()
	for _, h := range p.layout.v1 {
		if slices.Equal(h.controllers, []Controller{CPU}) && limits.CPUs == 0 {
			continue
		}
		d := v1dir{h, filepath.Join(p.dir(h), id)}
		if err := os.Mkdir(d.path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, makeError(d.path, err)
		}
		g.v1 = append(g.v1, d)
	}
	if g.dirFD, err = unix.Open(g.unified, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return nil, fault.New(fault.Internal, "open cgroup %s: %w", g.unified, err)
	}
	if g.threads, err = unix.Openat(g.dirFD, "cgroup.threads", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		return nil, fault.New(fault.Internal, "open cgroup %s: %w", g.unified, err)
	}
	if err = g.fence.open(g.dirFD); err != nil {
		return nil, fault.New(fault.Internal, "open cgroup %s: %w", g.unified, err)
	}
	if err := g.openOOM(); err != nil {
		return nil, fault.New(fault.Internal, "open cgroup %s: %w", g.unified, err)
	}
	if err := g.setLimits(Limits{}, limits); err != nil {
		return nil, err
	}
	g.limits = limits
	return g, nil
}

// ID is the name that the group was made with.
func (g *Group) ID() string { return g.id }

// Path is the group's directory in the v2 hierarchy.
func (g *Group) Path() string { return g.unified }

// FD is the group's v2 directory, opened O_PATH, for CLONE_INTO_CGROUP
// (clone(2), 5.7). The group owns it.
func (g *Group) FD() int { return g.dirFD }

// ThreadsFD is cgroup.threads, open for reading: at offset 0 it lists every
// thread of the group in our pid namespace, one a line. The group owns it.
func (g *Group) ThreadsFD() int { return g.threads }

// NeedsAdd tells whether a process cloned into the group must be put into v1
// hierarchies too, by [Group.Add] or by inheritance.
func (g *Group) NeedsAdd() bool { return len(g.v1) > 0 }

// Add puts a process, given in our pid namespace, into the group's v1
// hierarchies; its threads come along. Where there are none it does nothing.
func (g *Group) Add(pid int) error {
	for _, d := range g.v1 {
		if err := addTo(d.path, pid); err != nil {
			return err
		}
	}
	return nil
}

// Move puts a process into the group in all hierarchies, v2 included: for one
// that was not cloned into it.
func (g *Group) Move(pid int) error {
	if err := addTo(g.unified, pid); err != nil {
		return err
	}
	return g.Add(pid)
}

func addTo(dir string, pid int) error {
	err := write(filepath.Join(dir, "cgroup.procs"), strconv.Itoa(pid))
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.ESRCH):
		return fault.New(fault.NotFound, "move process %d into its cgroup: %w", pid, err)
	case errors.Is(err, unix.EINVAL):
		return fault.New(fault.Conflict, "move process %d into its cgroup: %w", pid, err).
			WithHint("a real-time process cannot enter a group without real-time budget")
	}
	return fault.New(fault.Internal, "move process %d into its cgroup: %w", pid, err)
}

// dirOf is the group's directory that has a controller's files.
func (g *Group) dirOf(c Controller) (string, Version) {
	for _, d := range g.v1 {
		if slices.Contains(d.controllers, c) {
			return d.path, 1
		}
	}
	if slices.Contains(g.layout.unified.controllers, c) {
		return g.unified, 2
	}
	return "", 0
}

// Close closes the group's descriptors. The directories stay; remove them
// with [Group.Remove] before.
func (g *Group) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, fd := range []int{g.dirFD, g.threads, g.oom} {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
	g.dirFD, g.threads, g.oom = -1, -1, -1
	g.fence.close()
}
