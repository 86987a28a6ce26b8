package engine_test

import (
	"strings"
	"testing"
)

// What was made and changed in /dev comes back, also from disk: what is open there, too.
func TestChangedDevicesComeBack(t *testing.T) {
	h := newKeeping(t)
	box := h.create()
	p := h.exec(box, false, "python3", "-c", interpreter)
	p.until("= ready")
	const look = "[(n, oct(s.st_mode), s.st_uid, s.st_gid, s.st_size if s.st_mode & 0o100000 else 0, s.st_nlink, s.st_ino if n[0] == 'x' and not s.st_rdev else 0, s.st_rdev) " +
		"for n in sorted(os.listdir('/dev') + ['xd/in']) for s in [os.lstat('/dev/' + n)]] + [open('/dev/xf').read(), os.readlink('/dev/xl'), " +
		"open('/dev/xzero', 'rb').read(2), open('/dev/random').read(), os.getcwd(), open('in').read(), f.seek(0), f.read(), os.stat('/dev/xf').st_mtime_ns]"
	p.ask("import os, socket, stat", "= ")
	if got := p.ask("os.stat('/dev').st_mtime", "= "); got != "1000000000.0" {
		t.Errorf("a new /dev is of %s, so each checkpoint looks at all of it", got)
	}
	for _, line := range []string{
		"os.chdir('/dev')",
		"fresh = sorted(os.listdir('.'))",
		"f = open('xf', 'w+'); f.write('before'); f.flush()",
		"os.chown('xf', 1000, 1001); os.chmod('xf', 0o640)",
		"os.link('xf', 'xg'); os.symlink('xf', 'xl')",
		"os.mkfifo('xp'); fifo = os.open('xp', os.O_RDWR); os.write(fifo, b'kept')",
		"os.mkdir('xd'); open('xd/in', 'w').write('within'); os.chdir('xd')",
		"log = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); log.bind('/dev/log')",
		"os.rename('/dev/zero', '/dev/xzero'); os.remove('/dev/core'); os.chmod('/dev/full', 0o600); os.chown('/dev/tty', 0, 5)",
		"os.remove('/dev/random'); open('/dev/random', 'w').write('a file')",
		"os.remove('/dev/stdin'); os.symlink('null', '/dev/stdin')",
		"os.remove('/dev/stdout'); os.mknod('/dev/stdout', stat.S_IFCHR, 0); os.chmod('/dev/stdout', 0o751)",
	} {
		p.ask(line, "= ")
	}
	was := p.ask(look, "= ")
	if !strings.Contains(was, "within") {
		t.Fatal(was)
	}
	c := h.keep(box)
	check := func(p *talk) {
		t.Helper()
		if got := p.ask(look, "= "); got != was {
			t.Errorf("/dev is\n%s, was\n%s", got, was)
		}
		const use = "os.read(fifo, 10), log.sendto(b'x', '/dev/log'), log.recv(5), os.path.samefile('/dev/xf', '/dev/xg')"
		if got := p.ask(use, "= "); got != "(b'kept', 1, b'x', True)" {
			t.Error(got)
		}
	}
	check(p)
	p.ask("[os.remove('/dev/' + n) for n in ('xf', 'xg', 'full', 'random')]", "= ")
	_, ss := h.rollback(box, c.ID)
	check(ss[p.id])
	h.kept(box, c.ID)
	if n := h.engine.Unload(box); n != 1 {
		t.Fatalf("%d checkpoints are on disk alone", n)
	}
	_, ss = h.rollback(box, c.ID)
	check(ss[p.id])
}
