// Package tarball packs files of this machine into tar streams and unpacks
// tar streams that come from inside a sandbox, whose names and kinds are
// hostile input: see [Unpack].
package tarball

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// inode identifies a file with several names.
type inode struct{ dev, ino uint64 }

// packer holds the state of one Pack.
type packer struct {
	w     *tar.Writer
	names map[inode]string // of files with several links, as first written
}

// Pack writes the file or directory at src as a tar whose names begin with
// name; "." stands for a directory's content alone. Modes, numeric owners,
// times, extended attributes, links and device nodes are kept; sockets, which
// no archive holds, are left out. A symbolic link at src itself is followed.
func Pack(w io.Writer, src, name string) error {
	p := &packer{w: tar.NewWriter(w), names: map[inode]string{}}
	real, err := filepath.EvalSymlinks(src)
	if err != nil {
		return err
	}
	err = filepath.WalkDir(real, func(file string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(real, file)
		if err != nil {
			return err
		}
		if rel == "." && name == "." {
			return nil
		}
		return p.add(file, path.Join(name, filepath.ToSlash(rel)))
	})
	if err != nil {
		return err
	}
	return p.w.Close()
}

// add writes one file.
func (p *packer) add(file, name string) error {
	info, err := os.Lstat(file)
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSocket != 0 {
		return nil
	}
	target := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		if target, err = os.Readlink(file); err != nil {
			return err
		}
	}
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	h.Name = name
	if info.IsDir() {
		h.Name += "/"
	}
	// Numbers count inside: a name here may be another account there.
	h.Uname, h.Gname = "", ""
	h.Format = tar.FormatPAX
	if h.PAXRecords, err = attributes(file); err != nil {
		return err
	}
	if ino, links := identity(info); links > 1 && !info.IsDir() {
		p.link(h, ino)
	}
	if err := p.w.WriteHeader(h); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if h.Typeflag != tar.TypeReg {
		return nil
	}
	return p.content(file, h.Size)
}

// link makes h a link if its file was written under another name.
func (p *packer) link(h *tar.Header, ino inode) {
	if first, ok := p.names[ino]; ok {
		h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
		return
	}
	p.names[ino] = h.Name
}

func (p *packer) content(file string, size int64) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	// A file that grows meanwhile is cut at the size in its header.
	n, err := io.Copy(p.w, io.LimitReader(f, size))
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	if n < size {
		return fmt.Errorf("%s: shrank from %d to %d bytes while it was read", file, size, n)
	}
	return nil
}

// identity returns what tells a file from others, and its number of links.
func identity(info fs.FileInfo) (inode, uint64) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return inode{}, 0
	}
	return inode{st.Dev, st.Ino}, st.Nlink
}

// attributes returns a file's extended attributes as records of a tar. Those
// of trusted.* belong to this machine's file systems (overlay marks) and
// security.selinux to its policy; they mean nothing elsewhere.
func attributes(file string) (map[string]string, error) {
	buf := make([]byte, 64<<10)
	n, err := unix.Llistxattr(file, buf)
	if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EPERM) || n == 0 && err == nil {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s: list attributes: %w", file, err)
	}
	records := map[string]string{}
	value := make([]byte, 64<<10)
	for name := range strings.SplitSeq(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00") {
		if strings.HasPrefix(name, "trusted.") || name == "security.selinux" || strings.ContainsRune(name, '=') {
			continue
		}
		v, err := unix.Lgetxattr(file, name, value)
		if errors.Is(err, unix.ENODATA) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: attribute %s: %w", file, name, err)
		}
		records["SCHILY.xattr."+name] = string(value[:v])
	}
	return records, nil
}
