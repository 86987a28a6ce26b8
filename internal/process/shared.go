package process

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

// readShared copies the objects that shared mappings without a file show, each
// once: anonymous shared memory, and files that have no name any more. Of those
// that descriptors refer to, too, they have the content.
func (l *Live) readShared(files []*image.File) ([]*image.Shared, error) {
	type key struct{ dev, ino uint64 }
	seen := map[key]bool{}
	var out []*image.Shared
	for _, p := range l.order {
		for i := range p.memory.VMAs() {
			v := &p.memory.VMAs()[i]
			if v.Kind != image.SharedAnonymous || isSegment(v) || seen[key{v.Dev, v.Ino}] {
				continue
			}
			seen[key{v.Dev, v.Ino}] = true
			s, err := copyShared(p, v, files)
			if err != nil {
				for _, o := range out {
					_ = o.Close()
				}
				return nil, fmt.Errorf("copy shared memory at %#x of %s: %w", v.Start, describe(p), err)
			}
			out = append(out, s)
		}
	}
	return out, nil
}

// copyShared copies what is populated of one object.
func copyShared(p *liveProcess, v *image.VMA, files []*image.File) (*image.Shared, error) {
	path := fmt.Sprintf("/proc/%d/map_files/%x-%x", p.via, v.Start, v.End)
	from, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	defer unix.Close(from)
	var st unix.Stat_t
	if err := unix.Fstat(from, &st); err != nil {
		return nil, err
	}
	for _, f := range files {
		if (f.Kind == image.Memfd || f.Kind == image.Regular && f.Deleted) && f.Dev == st.Dev && f.Ino == st.Ino {
			return &image.Shared{Dev: v.Dev, Ino: v.Ino, Size: st.Size, FD: -1, Object: f.Object, Name: v.Path}, nil
		}
	}
	to, err := copyFile(from)
	if err != nil {
		return nil, err
	}
	return &image.Shared{Dev: v.Dev, Ino: v.Ino, Size: st.Size, FD: to, Name: v.Path}, nil
}

// copyFile makes an anonymous file with the content of another one.
func copyFile(from int) (int, error) {
	var st unix.Stat_t
	if err := unix.Fstat(from, &st); err != nil {
		return -1, err
	}
	to, err := unix.MemfdCreate("copy", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("memfd_create: %w", err)
	}
	if err = unix.Ftruncate(to, st.Size); err == nil {
		err = CopyData(to, from, st.Size)
	}
	if err != nil {
		_ = unix.Close(to)
		return -1, err
	}
	return to, nil
}

// CopyData copies the parts of a file that hold data to the same places of
// another one.
func CopyData(to, from int, size int64) error {
	for at := int64(0); at < size; {
		start, err := unix.Seek(from, at, unix.SEEK_DATA)
		if err == unix.ENXIO {
			return nil
		}
		if err != nil {
			return fmt.Errorf("seek data: %w", err)
		}
		end, err := unix.Seek(from, start, unix.SEEK_HOLE)
		if err != nil {
			return fmt.Errorf("seek hole: %w", err)
		}
		if _, err := unix.Seek(to, start, unix.SEEK_SET); err != nil {
			return err
		}
		for start < end {
			n, err := unix.Sendfile(to, from, &start, int(min(end-start, 1<<30)))
			if err == unix.EINTR {
				continue
			}
			if err != nil {
				return fmt.Errorf("copy: %w", err)
			}
			if n == 0 {
				return nil // it became shorter
			}
		}
		at = end
	}
	return nil
}
