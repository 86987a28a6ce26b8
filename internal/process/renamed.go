package process

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/process/descriptor"
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/process/memory"
)

// findNames finds the names of files that shared mappings show and that were unlinked by
// the name that /proc tells, but have another one: sem_open(3) makes its
// semaphores so. Who has them mapped by that name, or opens it later, shares them. All others are files without a
// name, and become memory of the tree's own.
func (l *Live) findNames(env descriptor.Env) error {
	names := map[sharedKey]string{}
	for _, p := range l.order {
		vmas := p.memory.VMAs()
		for at, was := range p.renamed { // they are the same as at the last stop if no mapping changed
			if v := memory.Find(vmas, at); v != nil && v.Start == at && v.Shared && v.Path == was.now {
				v.Kind, v.Path, v.Deleted = image.SharedAnonymous, was.then, true
			}
		}
		p.renamed = nil
		for i := range vmas {
			v := &vmas[i]
			if v.Kind != image.SharedAnonymous || !v.Deleted || !mayHaveName(v.Path) {
				continue
			}
			k := sharedKey{v.Dev, v.Ino}
			name, known := names[k]
			if !known {
				var err error
				if name, err = l.findName(env, p, v); err != nil {
					return err
				}
				names[k] = name
			}
			if name != "" {
				if p.renamed == nil {
					p.renamed = map[uint64]rename{}
				}
				p.renamed[v.Start] = rename{v.Path, name}
				v.Kind, v.Path, v.Deleted = image.FileBacked, name, false
			}
		}
	}
	return nil
}

// rename is what /proc tells of a mapped file, and the name that it has.
type rename struct{ then, now string }

// mayHaveName reports whether a deleted path may be one of a file system's: the kernel's own objects
// are called otherwise.
func mayHaveName(path string) bool {
	for _, own := range []string{"/memfd:", "/SYSV", "/dev/zero", "/anon_hugepage", "/[aio]"} {
		if strings.HasPrefix(path, own) {
			return false
		}
	}
	return strings.HasPrefix(path, "/")
}

func (l *Live) findName(env descriptor.Env, p *liveProcess, v *image.VMA) (string, error) {
	path := fmt.Sprintf("/proc/%d/map_files/%x-%x", p.via, v.Start, v.End)
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("open mapped file %s of %s: %w", v.Path, describe(p), err)
	}
	defer unix.Close(fd)
	name, named, err := descriptor.NameOf(env, fd, v.Path)
	if err != nil {
		return "", fmt.Errorf("look for mapped file %s of %s: %w", v.Path, describe(p), err)
	}
	// The link count of an unlinked file of a lower layer says nothing. One that is mapped to
	// be written is of none.
	if name == "" && named && (v.Prot&unix.PROT_WRITE != 0 || v.Advice&image.MayWrite != 0) {
		return "", fault.New(fault.Uncapturable, "%s maps the file %s, which was unlinked there but has another name elsewhere, at %#x", describe(p), v.Path, v.Start).
			WithHint("map it by the name it has")
	}
	return name, nil
}
