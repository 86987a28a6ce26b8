package engine_test

import "testing"

// Programs map memory at random addresses (V8 does): beside the stub, and where a zygote parks what is
// others'. A process that stood where it belongs until then has to move in its zygote.
func TestMemoryBesideTheStub(t *testing.T) {
	h := newHost(t)
	box := h.create()
	x := h.obedient(box)
	x.must("a child", `
libc.mmap.restype = ctypes.c_void_p; libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
places = [0x200020000000 + i * 4096 for i in (0, 7)] + [0x2000_8000_0000, 0x2100_0000_0000] + [0x2100_0000_0000 + i * (1 << 30) for i in (1, 3, 5)] + [0x1fff_ffff_0000]
def fill(mark):
    for at in places:
        same(call(libc.mmap, at, 8192, 3, 0x100022, -1, 0), at); ctypes.memset(at, mark, 4096); ctypes.memset(at + 4096, mark + 1, 4096)
def whole(mark):
    for at in places: same(ctypes.string_at(at, 8192), bytes([mark]) * 4096 + bytes([mark + 1]) * 4096, hex(at))
    return 'whole'
ask, tell = os.pipe(); hear, say = os.pipe()
def kid():
    while True: os.write(say, eval(os.read(ask, 100).decode()) and b'done')
k = child(kid)
def kids(what): os.write(tell, what.encode()); same(os.read(hear, 4), b'done')
`)
	h.checkpoint(box)
	x.must("fill", `fill(1); kids("fill(5) or 1"); whole(1)`)
	second := h.checkpoint(box)
	h.checkpoint(box)
	const check = `whole(1); kids("whole(5)")`
	x.must("live", check)
	for range 2 {
		_, ss := h.rollback(box, second.ID)
		x = ss[x.id]
		x.must("after a rollback", check)
	}
	for _, f := range h.fork(box, second.ID, 2) {
		h.adopt(f, x.id).must("in a copy", check)
		h.remove(f)
	}
}
