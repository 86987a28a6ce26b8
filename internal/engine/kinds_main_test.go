package engine_test

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// obeying runs python code that comes as lines of base64, in one name space,
// and answers with the value of the last expression, or what went wrong.
const obeying = `
import ast, base64, sys, traceback
names = {'__name__': 'obeying'}
def obey(code):
    tree = ast.parse(code)
    last = tree.body.pop().value if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, '<said>', 'exec'), names)
    return eval(compile(ast.Expression(last), '<said>', 'eval'), names) if last is not None else None
obey('''
import os, sys, time, signal, ctypes, mmap, threading, socket, select, struct, errno, subprocess
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
def call(f, *a):
    r = f(*a)
    if r == -1: raise OSError(ctypes.get_errno(), str(a))
    return r
def stat(pid):
    with open('/proc/%d/stat' % pid) as f: t = f.read()
    f = t[t.rindex(')') + 2:].split()
    return dict(state=f[0], parent=int(f[1]), group=int(f[2]), session=int(f[3]), tty=int(f[4]), foreground=int(f[5]))
def status(pid, key):
    for l in open('/proc/%s/status' % pid):
        if l.startswith(key + ':'): return ' '.join(l.split()[1:])
def until(f, what='', patience=10):
    end = time.monotonic() + patience
    while not f():
        if time.monotonic() > end: raise Exception('not in time: ' + what)
        time.sleep(0.002)
def child(f):
    p = os.fork()
    if p == 0:
        try: f()
        except BaseException: traceback.print_exc()
        os._exit(1)
    return p
def same(a, b, what=''):
    if a != b: raise Exception('%s: %r, want %r' % (what, a, b))
import traceback
''')
print('= ready', flush=True)
for line in sys.stdin:
    try: v = obey(base64.b64decode(line).decode())
    except BaseException: v = '!' + traceback.format_exc().replace('\n', ' | ')
    print('=', v, flush=True)
`

// obedient starts such a program.
func (h *host) obedient(box string) *talk {
	h.t.Helper()
	x := h.exec(box, false, "python3", "-u", "-c", obeying)
	x.until("= ready")
	return x
}

// run has it run code, and returns the value of the last expression.
func (x *talk) run(code string) string {
	x.t.Helper()
	return x.ask(base64.StdEncoding.EncodeToString([]byte(code)), "= ")
}

// must is run for code that may not fail.
func (x *talk) must(what, code string) string {
	x.t.Helper()
	got := x.run(code)
	if strings.HasPrefix(got, "!") {
		x.t.Fatalf("%s: %s", what, strings.ReplaceAll(got[1:], " | ", "\n"))
	}
	return got
}

// scene is a program in some state, which checkpoints keep.
type scene struct {
	name string
	// setup makes the state.
	setup string
	// peek raises an exception if the state is not there; it changes nothing.
	peek string
	// spoil changes the state, in the live program after the checkpoint.
	spoil string
	// check raises an exception if the state does not work; it may use it up.
	check string
}

// play brings a scene to a checkpoint, looks whether the live program felt it,
// and then at two forks, a rollback, a rollback to a checkpoint of that, and one to
// the first, which was read from disk.
func (k *keeping) play(t *testing.T, s scene) {
	t.Helper()
	outer := k.t
	k.t = t
	defer func() { k.t = outer }()
	box := k.create()
	defer k.remove(box)
	x := k.obedient(box)
	x.must("setup", s.setup)
	x.must("peek before", s.peek)
	first := k.keep(box)
	x.must("peek in the live program", s.peek)
	for i, f := range k.fork(box, first.ID, 2) {
		y := k.adopt(f, x.id)
		y.must(fmt.Sprintf("peek in fork %d", i), s.peek)
		y.must(fmt.Sprintf("check in fork %d", i), s.check)
		y.must(fmt.Sprintf("spoil in fork %d", i), s.spoil)
		k.remove(f)
	}
	x.must("peek in the live program after the forks", s.peek)
	x.must("spoil", s.spoil)
	_, ss := k.rollback(box, first.ID)
	x = ss[x.id]
	x.must("peek after the rollback", s.peek)
	second := k.checkpoint(box)
	x.must("peek after the second checkpoint", s.peek)
	x.must("check after the second checkpoint", s.check)
	x.must("spoil after the second checkpoint", s.spoil)
	_, ss = k.rollback(box, second.ID)
	x = ss[x.id]
	x.must("peek after the second rollback", s.peek)
	x.must("check after the second rollback", s.check)
	k.kept(box, first.ID)
	if n := k.engine.Unload(box); n != 1 {
		t.Fatalf("%d checkpoints are on disk alone", n)
	}
	_, ss = k.rollback(box, first.ID)
	x = ss[x.id]
	x.must("peek after a rollback from disk", s.peek)
	x.must("check after a rollback from disk", s.check)
}

func playAll(t *testing.T, scenes []scene) {
	h := newKeeping(t)
	for _, s := range scenes {
		t.Run(s.name, func(t *testing.T) { h.play(t, s) })
	}
}

// fork makes n sandboxes of a checkpoint.
func (h *host) fork(box, checkpoint string, n int) (out []string) {
	h.t.Helper()
	r := control.ForkRequest{From: control.CheckpointRef{Sandbox: box, Checkpoint: checkpoint}}
	for range n {
		r.Sandboxes = append(r.Sandboxes, h.id("sb"))
		r.Hostnames = append(r.Hostnames, "")
	}
	_, err := forked(h.engine.Fork(background, r))
	check(h.t, err)
	return r.Sandboxes
}

func (h *host) remove(box string) {
	h.t.Helper()
	if err := h.engine.Remove(background, control.SandboxRequest{Sandbox: box}); err != nil {
		h.t.Errorf("remove %s: %v", box, err)
	}
}

// put writes a program into a sandbox.
func (h *host) put(box, path string, content []byte) {
	h.t.Helper()
	x := h.obedient(box)
	x.must("make the file", fmt.Sprintf("f = open(%q, 'wb')", path))
	for len(content) > 0 {
		n := min(len(content), 1<<16)
		x.must("write", fmt.Sprintf("import base64; f.write(base64.b64decode('%s'))", base64.StdEncoding.EncodeToString(content[:n])))
		content = content[n:]
	}
	x.must("close", fmt.Sprintf("f.close(); os.chmod(%q, 0o755)", path))
	x.say(base64.StdEncoding.EncodeToString([]byte("os._exit(0)")))
	<-h.ended
}

// sayRaw types bytes as they are.
func (x *talk) sayRaw(s string) {
	x.t.Helper()
	_, err := x.in.WriteString(s)
	check(x.t, err)
}

func containsWord(text, word string) bool { return slices.Contains(strings.Fields(text), word) }
