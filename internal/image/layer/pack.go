package layer

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/image/cause"
	"github.com/sandtree/sandtree/internal/image/erofs"
)

// types maps kinds of inode(7) to tar's. Tar has no sockets.
var types = map[uint32]byte{
	unix.S_IFREG: tar.TypeReg,
	unix.S_IFDIR: tar.TypeDir,
	unix.S_IFLNK: tar.TypeSymlink,
	unix.S_IFCHR: tar.TypeChar,
	unix.S_IFBLK: tar.TypeBlock,
	unix.S_IFIFO: tar.TypeFifo,
}

// Pack writes a tree as a tar stream in PAX format that keeps all attributes,
// so that applying it to an empty [Stack] gives the tree again. Sockets are left
// out, and whiteouts of overlayfs stay devices 0/0. Equal trees give equal
// streams.
func Pack(ctx context.Context, w io.Writer, t *erofs.Tree) error {
	p := packer{ctx: ctx, w: tar.NewWriter(w), links: map[*erofs.Node]string{}}
	if err := p.node(t.Root, "./"); err != nil {
		return fmt.Errorf("write tar: %w", cause.Tar(err))
	}
	if err := p.w.Close(); err != nil {
		return fmt.Errorf("write tar: %w", cause.Tar(err))
	}
	return nil
}

type packer struct {
	ctx   context.Context
	w     *tar.Writer
	links map[*erofs.Node]string // the first name of each file
}

// node writes a node and all below it. The path of a directory ends in a slash.
func (p *packer) node(n *erofs.Node, path string) error {
	if err := p.ctx.Err(); err != nil {
		return err
	}
	if err := p.entry(n, path); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, name := range n.Names() {
		c, below := n.Child(name), path+name
		if c.IsDir() {
			below += "/"
		}
		if err := p.node(c, below); err != nil {
			return err
		}
	}
	return nil
}

// entry writes one entry.
func (p *packer) entry(n *erofs.Node, path string) error {
	kind, ok := types[n.Kind()]
	if !ok {
		return nil
	}
	if first := p.links[n]; first != "" {
		return p.w.WriteHeader(&tar.Header{Typeflag: tar.TypeLink, Name: path, Linkname: first, Format: tar.FormatPAX})
	}
	h := &tar.Header{
		Typeflag: kind, Name: path, Linkname: n.Target, Size: n.Size, Mode: int64(n.Mode & 0o7777),
		Uid: int(n.UID), Gid: int(n.GID), ModTime: time.Unix(n.Sec, int64(n.Nsec)),
		Devmajor: int64(n.Major), Devminor: int64(n.Minor), Format: tar.FormatPAX,
	}
	for name, value := range n.Xattrs {
		if h.PAXRecords == nil {
			h.PAXRecords = map[string]string{}
		}
		h.PAXRecords[xattrRecord+name] = value
	}
	if err := p.w.WriteHeader(h); err != nil {
		return err
	}
	if !n.IsDir() {
		p.links[n] = path
	}
	if n.Size == 0 || n.Open == nil {
		return nil
	}
	r, err := n.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	copied, err := io.CopyN(p.w, cause.Reader{Ctx: p.ctx, R: r}, n.Size)
	if err == io.EOF {
		err = fault.New(fault.Conflict, "content ends at byte %d: it was changed while it was read", copied)
	}
	return err
}
