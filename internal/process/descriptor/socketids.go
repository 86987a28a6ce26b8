package descriptor

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

// idRange is a line of /proc/PID/uid_map (user_namespaces(7)).
type idRange struct{ inside, outside, count int }

// idMap translates ids between the sandbox and this process.
type idMap []idRange

// nobody is what an id that is in no map reads as.
const nobody = 65534

func parseIDMap(text []byte) (m idMap, err error) {
	for line := range bytes.Lines(text) {
		f := bytes.Fields(line)
		if len(f) != 3 {
			return nil, fmt.Errorf("line %q of an id map", line)
		}
		var r idRange
		for i, to := range []*int{&r.inside, &r.outside, &r.count} {
			if *to, err = strconv.Atoi(string(f[i])); err != nil {
				return nil, fmt.Errorf("line %q of an id map: %w", line, err)
			}
		}
		m = append(m, r)
	}
	return m, nil
}

func (m idMap) in(id int) int {
	for _, r := range m {
		if id >= r.outside && id-r.outside < r.count {
			return id - r.outside + r.inside
		}
	}
	return nobody
}

// number is in for ids of 32 bits.
func (m idMap) number(id uint32) uint32 { return uint32(m.in(int(id))) } //nolint:gosec // ids inside are of 16 bits

func (m idMap) out(id int) int {
	for _, r := range m {
		if id >= r.inside && id-r.inside < r.count {
			return id - r.inside + r.outside
		}
	}
	return nobody
}

// ids are the maps of users and groups of a process's user namespace.
type ids struct{ users, groups idMap }

// idsOf reads the maps of a process, which c reads once.
func (c *Capturer) idsOf(proc int) (*ids, error) {
	if c.ids != nil {
		return c.ids, nil
	}
	var m ids
	for name, to := range map[string]*idMap{"uid_map": &m.users, "gid_map": &m.groups} {
		text, err := c.slurp(unix.AT_FDCWD, "/proc/"+strconv.Itoa(c.procs[proc].HostPID)+"/"+name, false)
		if err == nil {
			*to, err = parseIDMap(text)
		}
		if err != nil {
			return nil, fmt.Errorf("%s of process %d: %w", name, c.procs[proc].PID, err)
		}
	}
	c.ids = &m
	return c.ids, nil
}

// peer translates a struct ucred.
func (c *Capturer) peer(proc int, ucred []byte) (*image.Peer, error) {
	m, err := c.idsOf(proc)
	if err != nil {
		return nil, err
	}
	return &image.Peer{
		PID: c.insidePID(int(int32(binary.NativeEndian.Uint32(ucred))), false),
		UID: m.users.in(int(binary.NativeEndian.Uint32(ucred[4:]))),
		GID: m.groups.in(int(binary.NativeEndian.Uint32(ucred[8:]))),
	}, nil
}

// peerOf is what SO_PEERCRED and SO_PEERGROUPS say, nil if nothing.
func (c *Capturer) peerOf(d *description) (*image.Peer, error) {
	var u [unix.SizeofUcred]byte
	if n, err := getOption(d.fd, unix.SOL_SOCKET, unix.SO_PEERCRED, u[:]); err != nil || n < len(u) {
		return nil, fmt.Errorf("SO_PEERCRED: %w", err)
	}
	if int32(binary.NativeEndian.Uint32(u[4:])) == -1 { // never connected
		return nil, nil
	}
	p, err := c.peer(d.proc, u[:])
	if err != nil {
		return nil, err
	}
	b := make([]byte, 4*64)
	n, err := getOption(d.fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS, b)
	if err == unix.ERANGE {
		b = make([]byte, 4*65536)
		n, err = getOption(d.fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS, b)
	}
	if err == unix.ENODATA {
		return p, nil
	}
	if err != nil {
		return nil, fmt.Errorf("SO_PEERGROUPS: %w", err)
	}
	for b = b[:n]; len(b) >= 4; b = b[4:] {
		p.Groups = append(p.Groups, c.ids.groups.in(int(binary.NativeEndian.Uint32(b))))
	}
	return p, nil
}
