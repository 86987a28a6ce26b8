package engine_test

import "testing"

// A checkpoint says how much was written to files since the one before, also after a rollback.
func TestWrittenToFiles(t *testing.T) {
	h := newHost(t)
	box := h.create()
	sh := h.exec(box, false, "sh", "-c", `echo = ready; while read -r n; do head -c "$n" /dev/urandom > /root/f$n; echo "= $n"; done`)
	sh.until("= ready")
	const much, slack = 20 << 20, 1 << 20
	check := func(what string, atLeast int64) string {
		t.Helper()
		c := h.checkpoint(box)
		if c.FileBytes < atLeast || c.FileBytes > atLeast+slack {
			t.Errorf("%s: %d bytes were written to files, not about %d", what, c.FileBytes, atLeast)
		}
		return c.ID
	}
	first := check("at first", 0)
	sh.ask("20971520", "= ")
	check("after 20 MiB", much)
	check("with nothing since", 0)
	_, ss := h.rollback(box, first)
	sh = ss[sh.id]
	sh.ask("20971521", "= ")
	check("after a rollback", much)
}
