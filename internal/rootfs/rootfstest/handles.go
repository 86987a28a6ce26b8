package rootfstest

import (
	"github.com/sandtree/sandtree/internal/fault"
	"golang.org/x/sys/unix"
)

// handles finds files of the upper and of the layers by their handles.
func handles(e *env) {
	const noDecoding = 0x200 // AT_HANDLE_FID (Linux 6.5)
	r := e.upper("sb.0")
	e.write(r, "/new", "new")
	e.write(r, "/etc/motd", "copied up")
	r.Do(func() error { return unix.Mkdir(r.Path("/made"), 0o755) })
	e.write(r, "/made/inner", "x")
	handle := func(path string) (int32, []byte) {
		e.t.Helper()
		h, _, err := unix.NameToHandleAt(unix.AT_FDCWD, r.Path(path), noDecoding)
		if err != nil {
			e.t.Fatalf("handle of %s: %v", path, err)
		}
		return h.Type(), h.Bytes()
	}
	for _, path := range []string{"/", "/new", "/etc", "/etc/motd", "/etc/passwd", "/usr/share/doc", "/made", "/made/inner"} {
		typ, h := handle(path)
		// What is looked for is held, as a watch would hold it.
		f := e.openFile(r, path, unix.O_RDONLY)
		if got, err := e.s.PathOf("sb.0", typ, h); err != nil || got != path {
			e.t.Errorf("handle of %s leads to %q (%v)", path, got, err)
		}
		_ = f.Close()
	}
	typ, h := handle("/new")
	f := e.openFile(r, "/new", unix.O_RDONLY)
	r.Do(func() error { return unix.Unlink(r.Path("/new")) })
	if got, err := e.s.PathOf("sb.0", typ, h); !fault.Is(err, fault.NotFound) {
		e.t.Errorf("handle of a file that was removed leads to %q (%v)", got, err)
	}
	_ = f.Close()
	for _, bad := range [][]byte{nil, h[:10], append([]byte{0, 0, 0, 0, 0}, h[5:]...)} {
		if got, err := e.s.PathOf("sb.0", typ, bad); !fault.Is(err, fault.Invalid) {
			e.t.Errorf("handle %x leads to %q (%v)", bad, got, err)
		}
	}
}
