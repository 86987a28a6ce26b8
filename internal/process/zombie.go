package process

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/confine"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/process/image"
)

// endedCredentials reads those of a zombie by its number inside. Nobody can ask it
// any more, but the kernel keeps them until it is reaped: waitid(2) tells its user.
func (l *Live) endedCredentials(pid int, ids *idMaps) (*image.Credentials, error) {
	name := fmt.Sprintf("%d/status", pid)
	fd, err := unix.Openat(l.cfg.Proc, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open status of the zombie %d: %w", pid, err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	text, err := io.ReadAll(f) // groups have no bound
	if err != nil {
		return nil, fmt.Errorf("read status of the zombie %d: %w", pid, err)
	}
	c, err := parseCredentials(text, ids)
	if err != nil {
		return nil, fmt.Errorf("status of the zombie %d: %w", pid, err)
	}
	return c, nil
}

// endedAs are the credentials that a restored zombie ends with. One of an image of an older
// version is root within its walls: with more, the next checkpoint would hold what no restore
// takes.
func endedAs(p *image.Process, w *confine.Walls) confine.Credentials {
	if p.EndedAs != nil {
		return credentials(p.EndedAs)
	}
	caps := w.Policy().Capabilities
	return confine.Credentials{Groups: []uint32{0}, Effective: caps, Permitted: caps, Bounding: caps, NoNewPrivs: !w.Policy().Setuid}
}

// parseCredentials takes what /proc/PID/status (proc_pid_status(5)) tells of
// credentials, that is all but the secure bits. It has the host's numbers.
func parseCredentials(text []byte, ids *idMaps) (*image.Credentials, error) {
	c := &image.Credentials{Groups: []int{}}
	for _, kind := range []struct {
		key    string
		to     *[4]int
		inside func(uint32) int
	}{{"Uid", &c.UID, ids.uid}, {"Gid", &c.GID, ids.gid}} {
		v, err := fieldsOf(text, kind.key, 10, 32)
		if err != nil {
			return nil, err
		}
		if len(v) != len(kind.to) {
			return nil, fault.New(fault.Internal, "%d numbers in line %q", len(v), kind.key)
		}
		for i := range v {
			kind.to[i] = kind.inside(uint32(v[i]))
		}
	}
	groups, err := fieldsOf(text, "Groups", 10, 32)
	if err != nil {
		return nil, err
	}
	for _, g := range groups[:min(len(groups), maxGroups)] { // more are no reason to refuse what has ended
		c.Groups = append(c.Groups, ids.gid(uint32(g)))
	}
	var noNewPrivs uint64
	for key, to := range map[string]*uint64{
		"CapInh": &c.Inheritable, "CapPrm": &c.Permitted, "CapEff": &c.Effective, "CapBnd": &c.Bounding, "CapAmb": &c.Ambient,
		"NoNewPrivs": &noNewPrivs,
	} {
		v, err := fieldsOf(text, key, 16, 64)
		if err != nil {
			return nil, err
		}
		if len(v) != 1 {
			return nil, fault.New(fault.Internal, "%d numbers in line %q", len(v), key)
		}
		*to = v[0]
	}
	c.NoNewPrivs = noNewPrivs == 1
	return c, nil
}

// fieldsOf are the numbers in a line. The name, the first line, may hold any text
// but no newline.
func fieldsOf(text []byte, key string, base, bits int) (out []uint64, err error) {
	_, rest, ok := bytes.Cut(text, []byte("\n"+key+":"))
	if !ok {
		return nil, fault.New(fault.Internal, "no line %q", key)
	}
	line, _, _ := bytes.Cut(rest, []byte{'\n'})
	for _, f := range bytes.Fields(line) {
		v, err := strconv.ParseUint(string(f), base, bits)
		if err != nil {
			return nil, fault.New(fault.Internal, "line %q: %w", key, err)
		}
		out = append(out, v)
	}
	return out, nil
}
