package process

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/xattr"
	"github.com/sandtree/sandtree/internal/process/descriptor"
	"github.com/sandtree/sandtree/internal/process/image"
)

// deletedSuffix is what the kernel puts behind the name of a removed file.
const deletedSuffix = " (deleted)"

// program is the file of a program that was deleted or replaced under a process.
// It cannot change while it runs, so one copy serves all checkpoints.
type program struct {
	stat unix.Stat_t
	copy *os.File
}

func (p *program) close() {
	if p != nil {
		_ = p.copy.Close()
	}
}

// keepNameless adds program files and working directories without a name to the
// files of the tree, since no path leads to them. It must come before the
// snapshot.
func (l *Live) keepNameless(t *image.Tree) error {
	objects := map[inode]int{}
	next := 0
	for _, f := range t.Files {
		next = max(next, f.Object)
		if f.Deleted && f.Object != 0 {
			objects[inode{f.Dev, f.Ino}] = f.Object
		}
	}
	add := func(f *image.File) int {
		k := inode{f.Dev, f.Ino}
		n, known := objects[k]
		if !known {
			next++
			n = next
			objects[k] = n
		} else if f.Blob != nil { // another file has the content
			_ = f.Blob.Close()
			f.Blob = nil
		}
		f.Object = n
		t.Files = append(t.Files, f)
		return len(t.Files)
	}
	for _, p := range l.order {
		if name := p.image.Cwd; l.nameless(p, "cwd", name) {
			f, err := namelessDirectory(p, name)
			if err != nil {
				return err
			}
			p.image.CwdFile = add(f)
		}
		name := p.image.Exe
		if !l.nameless(p, "exe", name) {
			p.program.close()
			p.program = nil
			continue
		}
		f, err := l.namelessProgram(p, name)
		if err != nil {
			return err
		}
		p.image.ExeFile = add(f)
	}
	return nil
}

type inode struct{ dev, ino uint64 }

// nameless reports whether a link of /proc/PID is of a file that was removed. A name may
// really end as the kernel marks those, and be another file's than the removed one.
func (l *Live) nameless(p *liveProcess, link, name string) bool {
	if !strings.HasSuffix(name, deletedSuffix) {
		return false
	}
	var file, there unix.Stat_t
	if unix.Stat(fmt.Sprintf("/proc/%d/%s", p.via, link), &file) != nil {
		return true
	}
	fd, err := unix.Openat2(l.cfg.Root, name, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return true
	}
	defer unix.Close(fd)
	return unix.Fstat(fd, &there) != nil || inode{file.Dev, file.Ino} != inode{there.Dev, there.Ino}
}

func namelessDirectory(p *liveProcess, name string) (*image.File, error) {
	var st unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d/cwd", p.via), &st); err != nil {
		return nil, fmt.Errorf("working directory of %s: %w", describe(p), err)
	}
	attributes, err := xattr.Read(fmt.Sprintf("/proc/%d/cwd", p.via))
	if err != nil {
		return nil, fmt.Errorf("attributes of the working directory of %s: %w", describe(p), err)
	}
	return &image.File{
		Kind: image.Directory, Flags: unix.O_PATH | unix.O_DIRECTORY, Path: strings.TrimSuffix(name, deletedSuffix), Deleted: true,
		Mode: st.Mode, Dev: st.Dev, Ino: st.Ino, UID: st.Uid, GID: st.Gid, Modified: st.Mtim, Attributes: attributes,
	}, nil
}

func (l *Live) namelessProgram(p *liveProcess, name string) (*image.File, error) {
	path := fmt.Sprintf("/proc/%d/exe", p.via)
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil, fmt.Errorf("program of %s: %w", describe(p), err)
	}
	if p.program == nil || p.program.stat.Dev != st.Dev || p.program.stat.Ino != st.Ino {
		if st.Size > descriptor.DefaultMaxContent {
			return nil, fault.New(fault.Uncapturable, "%s runs a program file of %d bytes that was deleted or replaced (%s), more than a checkpoint keeps",
				describe(p), st.Size, name).WithHint("restart it")
		}
		p.program.close()
		p.program = nil
		from, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("program of %s: %w", describe(p), err)
		}
		to, err := copyFile(from)
		_ = unix.Close(from)
		if err != nil {
			return nil, fmt.Errorf("copy the program of %s: %w", describe(p), err)
		}
		p.program = &program{stat: st, copy: os.NewFile(uintptr(to), "program")}
	}
	fd, err := unix.FcntlInt(p.program.copy.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("program of %s: %w", describe(p), err)
	}
	return &image.File{
		Kind: image.Regular, Flags: unix.O_RDONLY, Path: strings.TrimSuffix(name, deletedSuffix), Deleted: true,
		Mode: st.Mode, Dev: st.Dev, Ino: st.Ino, UID: st.Uid, GID: st.Gid, Modified: st.Mtim,
		Blob: &image.Blob{File: os.NewFile(uintptr(fd), "program"), Size: st.Size},
	}, nil
}
