package engine_test

import (
	"testing"

	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// Programs keep the files that they map while these are deleted, replaced or renamed
// between checkpoints, as libraries and programs are by an upgrade.
func TestKindsOfMappedFilesThatChangeBetweenCheckpoints(t *testing.T) {
	k := newKeeping(t)
	box := k.create()
	x := k.obedient(box)
	x.must("setup", `
import shutil
names = ['deleted', 'replaced', 'overwritten', 'renamed', 'swapped', 'stays']
def mapped(n):
    f = os.open('/root/' + n, os.O_RDWR | os.O_CREAT); os.write(f, n.encode()[:1] * 32768); m = libc.mmap(None, 32768, 3, 2, f, 0); os.close(f); ctypes.memset(m + 8192, 0x2e, 4096); return m
ms = [mapped(n) for n in names]
lower = libc.mmap(None, 8192, 1, 2, os.open('/bin/tar', os.O_RDONLY), 0); begins = ctypes.string_at(lower + 4096, 4096) # of a layer
shutil.copy('/bin/cat', '/root/cat')
p = subprocess.Popen(['/root/cat'], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0); p.stdin.write(b'first'); same(p.stdout.read(5), b'first')
written = 0
def whole():
    for n, m in zip(names, ms):
        want = bytearray(n.encode()[:1] * 32768); want[8192:12288] = b'.' * 4096; want[:written] = b'!' * written
        same(ctypes.string_at(m, 32768), bytes(want), n)
    same(ctypes.string_at(lower + 4096, 4096), begins)
    p.stdin.write(b'again'); same(p.stdout.read(5), b'again')
`)
	steps := []string{
		``,
		`
os.unlink('/root/deleted'); os.unlink('/root/replaced'); open('/root/replaced', 'w').write('another'); open('/root/new', 'w').write('another'); os.rename('/root/new', '/root/overwritten')
os.rename('/root/renamed', '/root/elsewhere'); os.rename('/root/swapped', '/root/tmp'); os.rename('/root/stays', '/root/swapped'); os.rename('/root/tmp', '/root/stays')
os.unlink('/root/cat'); shutil.copy('/bin/true', '/root/cat'); os.unlink('/bin/tar'); open('/bin/tar', 'w').write('tar')
`,
		`
for m in ms: ctypes.memset(m, 0x21, 100)
written = 100
`,
		`os.unlink('/root/cat'); os.unlink('/root/elsewhere'); os.unlink('/root/stays'); os.rename('/bin/tar', '/bin/rat')`,
	}
	var all []control.Checkpoint
	for _, s := range steps {
		x.must("step", s)
		all = append(all, k.keep(box))
		x.must("in the live program", `whole()`)
	}
	look := func(what string) {
		for _, c := range all {
			_, ss := k.rollback(box, c.ID)
			x = ss[x.id]
			x.must("after a rollback "+what, `whole()`)
			for _, f := range k.fork(box, c.ID, 1) {
				k.adopt(f, x.id).must("in a fork "+what, `whole()`)
				k.remove(f)
			}
		}
	}
	look("from memory")
	for _, c := range all {
		k.kept(box, c.ID)
	}
	k.engine.Unload(box)
	look("from disk")
	_, ss := k.rollback(box, all[0].ID)
	x = ss[x.id]
	for _, s := range steps[1:] { // of what is a checkpoint's own by now
		x.must("step after a restore", s)
		c := k.checkpoint(box)
		_, ss = k.rollback(box, c.ID)
		x = ss[x.id]
		x.must("after steps and a rollback", `whole()`)
	}
}
