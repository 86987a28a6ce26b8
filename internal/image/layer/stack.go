package layer

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/image/cause"
	"github.com/sandtree/sandtree/internal/image/erofs"
)

// Limits bound what the layers of one stack may hold together.
type Limits struct {
	// Entries is the number of tar entries and of parents that they lack.
	Entries int64
	// Bytes is the sum of the sizes of files, holes included.
	Bytes int64
	// Attributes is the sum of the lengths of paths, targets and xattrs, in
	// bytes, which are kept in memory.
	Attributes int64
}

// DefaultLimits are far above any image in use, and keep memory below a few
// gigabytes.
var DefaultLimits = Limits{Entries: 4 << 20, Bytes: 1 << 40, Attributes: 1 << 30}

// Stack is a sequence of layers applied one upon the other. It is for one
// goroutine.
type Stack struct {
	spool *Spool
	left  Limits
	view  *erofs.Tree
}

// NewStack returns a stack without layers. Contents go to the spool, which
// must outlive the trees that the stack gives.
func NewStack(spool *Spool, limits Limits) *Stack {
	return &Stack{spool: spool, left: limits, view: erofs.NewTree()}
}

// View returns the tree of all layers applied so far. It is the stack's own and
// changes with the next layer.
func (s *Stack) View() *erofs.Tree { return s.view }

// Apply reads a layer's uncompressed tar stream to its end and applies it. It
// returns the layer's difference. Errors are of kind Invalid if the stream is
// damaged or not what a layer can be, Exhausted if the spool's disk is full;
// errors of r stay in the chain. After an error the stack is of no use.
func (s *Stack) Apply(ctx context.Context, r io.Reader) (*erofs.Tree, error) {
	a := &applier{Stack: s, diff: erofs.NewTree()}
	a.diff.Root.SetAttributes(s.view.Root)
	r = cause.Reader{Ctx: ctx, R: r}
	t := tar.NewReader(r)
	for {
		h, err := t.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read tar: %w", cause.Tar(err))
		}
		if err := a.entry(h, t); err != nil {
			return nil, fmt.Errorf("tar entry %.200q: %w", h.Name, cause.Tar(err))
		}
	}
	// What follows the end mark is part of the stream and of its digest.
	if _, err := io.Copy(io.Discard, r); err != nil {
		return nil, fmt.Errorf("read tar: %w", cause.Tar(err))
	}
	return a.diff, nil
}

const (
	whiteoutPrefix = ".wh."
	// metaPrefix marks files of aufs's own, which no runtime extracts.
	metaPrefix = ".wh..wh."
	opaqueName = ".wh..wh..opq"
)

// applier applies one layer to the stack's view.
type applier struct {
	*Stack
	diff *erofs.Tree
	bare bool // the root was opaque: nothing of lower layers is left
}

// entry applies one tar entry.
func (a *applier) entry(h *tar.Header, content io.Reader) error {
	if err := a.charge(h); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	parts, err := splitPath(h.Name)
	if err != nil {
		return err
	}
	if len(parts) == 0 {
		return a.root(h)
	}
	for _, p := range parts[:len(parts)-1] {
		if strings.HasPrefix(p, metaPrefix) {
			return nil
		}
	}
	parent, err := a.resolve(parts[:len(parts)-1], true)
	if err != nil {
		return err
	}
	name := parts[len(parts)-1]
	if deleted, ok := strings.CutPrefix(name, whiteoutPrefix); ok {
		switch {
		case name == opaqueName:
			return a.opaque(parent)
		case strings.HasPrefix(name, metaPrefix):
			return nil
		}
		if err := erofs.CheckName(deleted); err != nil {
			return fmt.Errorf("whiteout: %w", err)
		}
		return a.whiteout(parent, deleted)
	}
	if h.Typeflag == tar.TypeLink {
		return a.hardLink(parent, name, h.Linkname)
	}
	n, err := nodeOf(h)
	if err != nil {
		return err
	}
	if n.IsWhiteout() { // a layer that was packed from an overlay's upper directory
		return a.whiteout(parent, name)
	}
	if n.Kind() == unix.S_IFREG && n.Size > 0 {
		if n.Open, err = a.spool.Add(content, n.Size); err != nil {
			return err
		}
	}
	a.put(parent, name, n)
	return nil
}

// count takes a file off the limits, be it listed or a missing parent.
func (a *applier) count() error {
	if a.left.Entries--; a.left.Entries < 0 {
		return fault.New(fault.Invalid, "too many files in the image's layers")
	}
	return nil
}

// charge takes an entry off the limits.
func (a *applier) charge(h *tar.Header) error {
	if err := a.count(); err != nil {
		return err
	}
	a.left.Attributes -= int64(len(h.Name) + len(h.Linkname))
	for k, v := range h.PAXRecords {
		a.left.Attributes -= int64(len(k) + len(v))
	}
	if a.left.Attributes < 0 {
		return fault.New(fault.Invalid, "names and xattrs of the image's layers are too long together")
	}
	if h.Size < 0 || h.Size > a.left.Bytes {
		return fault.New(fault.Invalid, "size of %d bytes: more than an image may have", h.Size)
	}
	a.left.Bytes -= h.Size
	return nil
}

// root sets the attributes of the root directory.
func (a *applier) root(h *tar.Header) error {
	n, err := nodeOf(h)
	if err != nil {
		return err
	}
	if !n.IsDir() {
		return fault.New(fault.Invalid, "the root is no directory")
	}
	a.view.Root.SetAttributes(n)
	a.diff.Root.SetAttributes(n)
	return nil
}

// put sets a name to a new node in view and difference, in place of what had
// it, but a directory upon a directory changes its attributes alone.
func (a *applier) put(parent place, name string, n *erofs.Node) {
	d := a.diffDir(parent)
	if !n.IsDir() {
		parent.dir().Add(name, n)
		d.Add(name, n)
		return
	}
	if v := parent.dir().Child(name); v != nil && v.IsDir() {
		v.SetAttributes(n)
	} else {
		v = erofs.NewDir(0)
		v.SetAttributes(n)
		parent.dir().Add(name, v)
	}
	putDir(d, name, n)
}

// putDir sets a directory in a difference to the attributes of from.
func putDir(d *erofs.Node, name string, from *erofs.Node) *erofs.Node {
	old := d.Child(name)
	if old != nil && old.IsDir() {
		opaque := old.IsOpaque()
		old.SetAttributes(from)
		if opaque {
			old.SetOpaque()
		}
		return old
	}
	n := erofs.NewDir(0)
	n.SetAttributes(from)
	if old != nil {
		// This layer had deleted or replaced the name before, and with it
		// what a lower layer's directory holds.
		n.SetOpaque()
	}
	d.Add(name, n)
	return n
}

// hardLink gives a file another name. The file's own name becomes part of the
// difference too, as link(2) on an overlay would copy it up.
func (a *applier) hardLink(parent place, name, target string) error {
	parts, err := splitPath(target)
	if err != nil {
		return fmt.Errorf("hard link: %w", err)
	}
	if len(parts) == 0 {
		return fault.New(fault.Invalid, "hard link to the root directory")
	}
	from, err := a.resolve(parts[:len(parts)-1], false)
	if err != nil {
		return fmt.Errorf("hard link: %w", err)
	}
	last := parts[len(parts)-1]
	n := from.dir().Child(last)
	switch {
	case n == nil:
		return fault.New(fault.Invalid, "hard link to %.200q, which does not exist", target)
	case n.IsDir():
		return fault.New(fault.Invalid, "hard link to the directory %.200q", target)
	}
	a.diffDir(from).Add(last, n)
	a.put(parent, name, n)
	return nil
}

// whiteout hides a name of lower layers. What this layer itself has by that
// name stays, wherever in the stream it stands.
func (a *applier) whiteout(parent place, name string) error {
	v := parent.dir().Child(name)
	if v == nil {
		return nil
	}
	d := a.diffDir(parent)
	switch own := d.Child(name); {
	case own == nil:
		parent.dir().Remove(name)
		d.Add(name, &erofs.Node{Mode: unix.S_IFCHR})
	case own.IsDir() && !own.IsOpaque():
		own.SetOpaque()
		prune(v, own)
	}
	return nil
}

// opaque hides what lower layers have in a directory.
func (a *applier) opaque(at place) error {
	if len(at.names) == 0 {
		// overlayfs looks for the xattr on names it looks up, which the root
		// is not.
		if a.bare {
			return nil
		}
		a.bare = true
		for _, name := range at.dir().Names() {
			if err := a.whiteout(at, name); err != nil {
				return err
			}
		}
		return nil
	}
	// Once opaque, it has nothing of lower layers any more.
	if d := a.diffDir(at); !d.IsOpaque() {
		d.SetOpaque()
		prune(at.dir(), d)
	}
	return nil
}

// prune removes from a directory of the view what the difference has not.
func prune(view, diff *erofs.Node) {
	for _, name := range view.Names() {
		v, d := view.Child(name), diff.Child(name)
		switch {
		case d == nil, d.IsWhiteout():
			view.Remove(name)
		case v.IsDir():
			prune(v, d)
		}
	}
}
