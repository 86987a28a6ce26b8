package process

import (
	"bytes"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/process/descriptor"
)

// maxAuxv is the most that the files take that are read at once: auxv has some tens of
// words.
const maxAuxv = 4096

// readFiles reads what stands in files of /proc: mappings, open descriptors, and
// small ones. Buf is for one of the small ones.
func (p *liveProcess) readFiles(buf []byte) error {
	m := p.image
	adj, err := p.read("oom_score_adj", buf)
	if err != nil {
		return err
	}
	if m.OOMScoreAdj, err = strconv.Atoi(string(bytes.TrimSpace(adj))); err != nil {
		return fmt.Errorf("oom_score_adj of process %d: %w", p.pid, err)
	}
	if m.CoreFilter, err = p.coreFilter(buf); err != nil {
		return err
	}
	aux, err := p.read("auxv", buf)
	if err != nil {
		return err
	}
	m.Memory.Auxv = append([]byte(nil), aux...)
	if m.Exe, err = p.link("exe"); err != nil {
		return err
	}
	if m.Cwd, err = p.link("cwd"); err != nil {
		return err
	}
	if m.Root, err = p.link("root"); err != nil {
		return err
	}
	if p.numbers, err = descriptor.List(p.via, p.numbers[:0]); err != nil {
		return err
	}
	return p.memory.Refresh()
}

// coreFilter reads which memory of a process goes into a core file (core(5)).
func (p *liveProcess) coreFilter(buf []byte) (*uint32, error) {
	text, err := p.read("coredump_filter", buf)
	if err != nil {
		return nil, err
	}
	v, err := strconv.ParseUint(string(bytes.TrimSpace(text)), 16, 32)
	if err != nil {
		return nil, fmt.Errorf("coredump_filter of process %d: %w", p.pid, err)
	}
	filter := uint32(v)
	return &filter, nil
}

// read reads one of the small files of /proc/PID.
func (p *liveProcess) read(name string, buf []byte) ([]byte, error) {
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/%s", p.via, name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, buf)
	if err != nil {
		return nil, fmt.Errorf("read %s of process %d: %w", name, p.pid, err)
	}
	return buf[:n], nil
}

// link reads one of the links of /proc/PID.
func (p *liveProcess) link(name string) (string, error) {
	var buf [unix.PathMax + 16]byte
	n, err := unix.Readlink(fmt.Sprintf("/proc/%d/%s", p.via, name), buf[:])
	if err == unix.ENAMETOOLONG {
		what := map[string]string{"exe": "a program file", "cwd": "a working directory", "root": "a root directory"}[name]
		return "", fault.New(fault.Uncapturable, "%s has %s whose path is longer than the %d bytes that the kernel tells", describe(p), what, unix.PathMax-1).
			WithHint("try again when it has left that")
	}
	if err != nil {
		return "", fmt.Errorf("read %s of process %d: %w", name, p.pid, err)
	}
	return string(buf[:n]), nil
}
