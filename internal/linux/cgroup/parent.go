package cgroup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// namePrefix marks our directories at the top of a hierarchy.
const namePrefix = "sandtree-"

// Parent is a directory in each hierarchy used that holds groups and further
// parents, never processes (v2 forbids processes in inner groups).
type Parent struct {
	layout   Layout
	rel      string  // path below each hierarchy's base
	up       *Parent // nil for the daemon's own
	realtime realtime
}

// OpenParent makes or opens the directory "sandtree-NAME" in every hierarchy
// and lets the groups below it have controllers. NAME is the daemon's.
//
// Where the base is not a hierarchy's real root and holds processes (a
// container, a delegated service), v2 refuses to enable controllers; these
// processes are then moved into a leaf "sandtree-init" beside ours.
func (l Layout) OpenParent(name string) (*Parent, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	if err := l.enableBase(); err != nil {
		return nil, err
	}
	p := &Parent{layout: l, rel: namePrefix + name}
	return p, p.make()
}

// Child makes or opens a parent below this one, such as one per family. One
// process should open it once, for the sake of [Group.AllowRealtime].
func (p *Parent) Child(name string) (*Parent, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	c := &Parent{layout: p.layout, rel: filepath.Join(p.rel, name), up: p}
	return c, c.make()
}

// Path is the parent's directory in the v2 hierarchy.
func (p *Parent) Path() string { return p.dir(p.layout.unified) }

// Layout is the layout that the parent was opened in.
func (p *Parent) Layout() Layout { return p.layout }

// Names lists the groups and parents below this one, from every hierarchy:
// what a crashed daemon left may be in one alone.
func (p *Parent) Names() ([]string, error) {
	var names []string
	for _, h := range p.layout.all() {
		es, err := os.ReadDir(p.dir(h))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fault.New(fault.Internal, "list cgroup: %w", err)
		}
		for _, e := range es {
			if e.IsDir() && !slices.Contains(names, e.Name()) {
				names = append(names, e.Name())
			}
		}
	}
	return names, nil
}

func (p *Parent) dir(h hierarchy) string { return filepath.Join(h.base, p.rel) }

func (p *Parent) make() error {
	for _, h := range p.layout.all() {
		dir := p.dir(h)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return makeError(dir, err)
		}
		if h.v2 {
			if err := enable(dir, h.controllers); err != nil {
				return fault.New(fault.Internal, "enable cgroup controllers: %w", err)
			}
		}
	}
	return nil
}

func makeError(dir string, err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS):
		return fault.New(fault.Permission, "make cgroup %s: %w", dir, err).
			WithHint("sandtree's host process needs root and a writable cgroup file system")
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOSPC):
		return fault.New(fault.Exhausted, "make cgroup %s: %w", dir, err).
			WithHint("raise cgroup.max.descendants or cgroup.max.depth of a group above it")
	}
	return fault.New(fault.Internal, "make cgroup %s: %w", dir, err)
}

// enable lets the children of a v2 directory have controllers.
func enable(dir string, cs []Controller) error {
	have, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
	if err != nil {
		return err
	}
	on := strings.Fields(string(have))
	var want []string
	for _, c := range cs {
		if !slices.Contains(on, string(c)) {
			want = append(want, "+"+string(c))
		}
	}
	if len(want) == 0 {
		return nil
	}
	return write(filepath.Join(dir, "cgroup.subtree_control"), strings.Join(want, " "))
}

func (l Layout) enableBase() error {
	h := l.unified
	err := enable(h.base, h.controllers)
	if errors.Is(err, unix.EBUSY) {
		if err = evacuate(h.base, filepath.Join(h.base, namePrefix+"init")); err == nil {
			err = enable(h.base, h.controllers)
		}
	}
	if err != nil {
		return fault.New(fault.Permission, "enable cgroup controllers in %s: %w", h.base, err).
			WithHint("run sandtree as a service with Delegate=yes, or at the top of the cgroup tree")
	}
	return nil
}

// evacuate moves every process of a v2 group into a leaf. Processes fork
// meanwhile, so it goes on until a listing is empty; a child is born in its
// parent's group, so the listings only shrink once the parents have moved.
func evacuate(from, leaf string) error {
	if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	var last error
	for range 100 {
		pids, err := readPIDs(filepath.Join(from, "cgroup.procs"))
		if err != nil {
			return err
		}
		if len(pids) == 0 {
			return nil
		}
		for _, pid := range pids {
			err := write(filepath.Join(leaf, "cgroup.procs"), strconv.Itoa(pid))
			if err != nil && !errors.Is(err, unix.ESRCH) {
				last = err
			}
		}
	}
	if last == nil {
		last = unix.EBUSY
	}
	return last
}

// checkName keeps names from leaving the directory and from meeting the
// kernel's files, all of which have a dot after a controller's name.
func checkName(name string) error {
	ok := name != "" && len(name) <= 128 && name != "tasks" && name != "notify_on_release" && name != "release_agent"
	for _, r := range name {
		ok = ok && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_')
	}
	if !ok {
		return fault.New(fault.Invalid, "%q cannot name a cgroup: letters, digits, - and _ are allowed", name)
	}
	return nil
}

// write writes a control file in one call.
func write(path, text string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	if err := writeFD(fd, text); err != nil {
		return &fs.PathError{Op: "write " + strconv.Quote(text) + " to", Path: path, Err: err}
	}
	return nil
}

func writeFD(fd int, text string) error {
	for {
		_, err := unix.Write(fd, []byte(text))
		if err != unix.EINTR {
			return err
		}
	}
}

func readPIDs(path string) ([]int, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var pids []int
	for s := range strings.FieldsSeq(string(b)) {
		// 0 stands for a process that our pid namespace does not show.
		if n, err := strconv.Atoi(s); err == nil && n > 0 {
			pids = append(pids, n)
		}
	}
	return pids, nil
}
