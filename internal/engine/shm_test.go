package engine_test

import "testing"

// /dev/shm is memory, and comes back with the processes: contents, holes,
// links, owners, modes, numbers, times.
func TestSharedMemoryFilesComeBack(t *testing.T) {
	h := newHost(t)
	box := h.create()
	p := h.exec(box, false, "python3", "-c", interpreter)
	p.until("= ready")
	const look = "[(n, s.st_mode, s.st_uid, s.st_gid, s.st_size, s.st_nlink, s.st_ino, s.st_mtime_ns) for n in sorted(os.listdir('/dev/shm') + ['d/in']) " +
		"for s in [os.lstat('/dev/shm/' + n)]] + [open('/dev/shm/f').read(), os.readlink('/dev/shm/l'), os.path.samefile('/dev/shm/f', '/dev/shm/g')]"
	for _, line := range []string{
		"import os, mmap",
		"os.chdir('/dev/shm')",
		"open('f', 'w').write('before')",
		"os.chown('f', 1000, 1001)",
		"os.chmod('f', 0o640)",
		"os.link('f', 'g')",
		"os.symlink('f', 'l')",
		"os.mkfifo('p')",
		"os.mkdir('d')",
		"[open('gap', 'w').close() or os.remove('gap') for _ in range(9)]",
		"open('first', 'w').close()",
		"open('second', 'w').close()",
		"os.utime('p', ns=(10**18 + 1, 10**18 + 2))",
		"open('d/in', 'w').truncate(1 << 20)",
		"os.chown('d', 1000, 1000)",
		"os.chmod('d', 0o500)",
		"os.chdir('/')",
		"m = mmap.mmap(os.open('/dev/shm/f', os.O_RDWR), 6)",
	} {
		p.ask(line, "= ")
	}
	was := p.ask(look, "= ")
	c := h.checkpoint(box)
	p.ask("m.__setitem__(slice(0, 6), b'after!')", "= ")
	p.ask("os.remove('/dev/shm/l')", "= ")
	for range 2 {
		_, ss := h.rollback(box, c.ID)
		p = ss[p.id]
		if got := p.ask(look, "= "); got != was {
			t.Errorf("/dev/shm is\n%s, was\n%s", got, was)
		}
		p.ask("m.__setitem__(slice(0, 6), b'shared')", "= ")
		if got := p.ask("open('/dev/shm/f').read()", "= "); got != "shared" {
			t.Errorf("what was written through the mapping is %q in the file", got)
		}
	}
}

// Thousands of small files come back from disk, too: their content is no file of its own there.
func TestManySmallFilesAreDurable(t *testing.T) {
	k := newKeeping(t)
	box := k.create()
	p := k.exec(box, false, "python3", "-c", interpreter)
	p.until("= ready")
	p.ask("import os, zlib", "= ")
	p.ask("[open('/dev/shm/%d' % i, 'w').write('%d' % i * 9) for i in range(3000)]", "= ")
	const look = "zlib.crc32(b''.join(open('/dev/shm/' + n, 'rb').read() for n in sorted(os.listdir('/dev/shm'))))"
	was := p.ask(look, "= ")
	c := k.kept(box, k.keep(box).ID)
	p.ask("[os.remove('/dev/shm/%d' % i) for i in range(0, 3000, 2)]", "= ")
	if n := k.engine.Unload(box); n != 1 {
		t.Fatalf("%d checkpoints are on disk alone", n)
	}
	_, ss := k.rollback(box, c.ID)
	if got := ss[p.id].ask(look, "= "); got != was {
		t.Errorf("the files have %s, had %s", got, was)
	}
}
