package engine_test

import "testing"

// interpreter answers a line of python with "= " and its value.
const interpreter = `
import sys
names = {}
print('= ready', flush=True)
for line in sys.stdin:
    try: v = eval(line, names)
    except SyntaxError: v = exec(line, names)
    print('=', v, flush=True)
`

func TestExecAndFiles(t *testing.T) {
	h := newHost(t)
	box := h.create()
	p := h.exec(box, false, "python3", "-c", interpreter)
	p.until("= ready")
	if got := p.ask("6*7", "= "); got != "42" {
		t.Errorf("got %q", got)
	}
}

func TestRollbackBringsProcessAndFilesBack(t *testing.T) {
	h := newHost(t)
	box := h.create()
	p := h.exec(box, false, "python3", "-c", interpreter)
	p.until("= ready")
	p.ask("import os", "= ")
	p.ask("x = 41", "= ")
	p.ask("open('/root/f','w').write('before')", "= ")
	pid := p.ask("os.getpid()", "= ")
	c := h.checkpoint(box)
	t.Logf("frozen %d us: %v", c.FrozenNS/1000, c.StageNS)
	p.ask("x = 0", "= ")
	p.ask("open('/root/f','w').write('after')", "= ")
	for range 3 {
		r, ss := h.rollback(box, c.ID)
		t.Logf("rollback %d us: %v", r.ElapsedNS/1000, r.StageNS)
		p = ss[p.id]
		if got := p.ask("x + 1", "= "); got != "42" {
			t.Errorf("x + 1 = %q", got)
		}
		if got := p.ask("open('/root/f').read()", "= "); got != "before" {
			t.Errorf("file has %q", got)
		}
		if got := p.ask("os.getpid()", "= "); got != pid {
			t.Errorf("pid %q, was %q", got, pid)
		}
		p.ask("x = 7", "= ")
		p.ask("open('/root/f','w').write('again')", "= ")
	}
}
