package overlay

import (
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// held are directories that a walk has open, so that what is in them is found by its
// name alone: a way from the root takes as long as it is deep, for each entry. Those
// used longest ago are closed beyond a number, since a tree may be of any depth. The
// trees of a view do not change.
type held struct {
	fds  map[place]*heldDir
	used uint64
}

type heldDir struct {
	fd   int
	used uint64
}

// mostHeld is how many directories one side of a comparison has open.
const mostHeld = 64

func newHeld() *held { return &held{fds: map[place]*heldDir{}} }

// directory gives a directory, which stays the receiver's and open until the next call.
func (h *held) directory(v *view, p place) (int, error) {
	h.used++
	if d := h.fds[p]; d != nil {
		d.used = h.used
		return d.fd, nil
	}
	from, name := v.trees[p.tree], p.path
	if at := strings.LastIndexByte(p.path, '/'); at >= 0 {
		if up := h.fds[place{p.tree, p.path[:at]}]; up != nil {
			from, name, up.used = up.fd, p.path[at+1:], h.used
		}
	}
	fd, err := openIn(from, name, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return -1, err
	}
	if len(h.fds) >= mostHeld {
		h.drop()
	}
	h.fds[p] = &heldDir{fd: fd, used: h.used}
	return fd, nil
}

// drop closes the one that was used longest ago.
func (h *held) drop() {
	var oldest place
	least := h.used + 1
	for p, d := range h.fds {
		if d.used < least {
			oldest, least = p, d.used
		}
	}
	unix.Close(h.fds[oldest].fd)
	delete(h.fds, oldest)
}

// Close closes all.
func (h *held) Close() {
	for _, d := range h.fds {
		unix.Close(d.fd)
	}
	clear(h.fds)
}

// open opens what is at a place.
func (v *view) open(p place, flags uint64) (int, error) {
	at := strings.LastIndexByte(p.path, '/')
	if v.held == nil || at < 0 {
		return openIn(v.trees[p.tree], p.path, flags)
	}
	dir, err := v.held.directory(v, place{p.tree, p.path[:at]})
	if err != nil {
		return -1, err
	}
	return openIn(dir, p.path[at+1:], flags)
}

// in is the path of a name in a directory ("." for the root). It is [path.Join], which
// looks at each byte of a path that may be long; what a redirect says may be no name.
func in(dir, name string) string {
	switch {
	case name == "" || name == "." || name == ".." || strings.Contains(name, "/"):
		return path.Join(dir, name)
	case dir == ".":
		return name
	}
	return dir + "/" + name
}
