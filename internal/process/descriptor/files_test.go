package descriptor

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const filesScript = `
import os, sys
os.chdir("/tmp")
os.mkdir("dir")
for i in range(30): open("dir/f%02d" % i, "w").close()
def put(fd, n):
    os.dup2(fd, n, inheritable=n % 2 == 0); os.close(fd)
put(os.open("plain", os.O_RDWR|os.O_CREAT|os.O_APPEND, 0o640), 50)
os.write(50, b"0123456789"); os.lseek(50, 4, 0)
os.dup2(50, 51)                                   # the same description
put(os.open("plain", os.O_RDONLY), 52); os.lseek(52, 7, 0)
put(os.open("gone", os.O_RDWR|os.O_CREAT, 0o604), 53)
os.write(53, b"deleted content"); os.pwrite(53, b"far", 5 << 20); os.lseek(53, 8, 0)
os.fchown(53, 1234, 5678)
put(os.open("gone", os.O_WRONLY|os.O_APPEND), 54)
os.unlink("gone")
put(os.open("/tmp", os.O_RDWR|os.O_TMPFILE, 0o600), 55); os.write(55, b"tmpfile")
put(os.open("old", os.O_RDWR|os.O_CREAT), 56); os.rename("old", "new")
put(os.open("replaced", os.O_RDWR|os.O_CREAT), 57); os.write(57, b"the first")
open("other", "w").write("the second"); os.rename("other", "replaced")
put(os.open("linked", os.O_RDWR|os.O_CREAT), 58); os.link("linked", "final"); os.unlink("linked")
put(os.open("odd (deleted)", os.O_RDWR|os.O_CREAT), 59)
put(os.open("dir", os.O_RDONLY|os.O_DIRECTORY), 60)
os.lseek(60, 12, 0)
os.mkdir("gonedir"); put(os.open("gonedir", os.O_RDONLY), 61); os.rmdir("gonedir")
put(os.open("plain", os.O_PATH), 62)
for i, d in enumerate(["null", "zero", "full", "random", "urandom"]):
    put(os.open("/dev/" + d, os.O_RDWR), 70 + i)
put(os.open("/proc/self/status", os.O_RDONLY), 80); os.lseek(80, 20, 0)
put(os.open("/proc/self", os.O_RDONLY), 81)
put(os.open("/proc/meminfo", os.O_RDONLY), 82)
put(os.open("/sys/kernel/mm/transparent_hugepage/enabled", os.O_RDONLY), 83)
put(os.open("/proc/self/fd", os.O_PATH), 84)
print("ready", flush=True)
sys.stdin.read()
`

func TestFiles(t *testing.T) {
	b := newBody(t)
	p := b.python(t, filesScript)
	want := descriptions(t, p.Process.Pid)
	r := p.mustCapture(t)
	if got := descriptions(t, p.Process.Pid); len(got) != len(want) {
		t.Error("the live process has other descriptors")
	} else {
		for n, w := range want {
			if got[n] != w {
				t.Errorf("live descriptor %d is %q, was %q", n, got[n], w)
			}
		}
	}
	if fileAt(r, 0, 50) != fileAt(r, 0, 51) || fileAt(r, 0, 50) == fileAt(r, 0, 52) {
		t.Error("descriptions are not shared as they were")
	}
	v := b.restore(t, r)
	for _, n := range []int{53, 54, 55, 57, 61} { // their last names differ
		want[n] = withoutName(want[n])
	}
	want[55] = strings.Replace(want[55], "flags022200002", "flags02000002", 1) // O_TMPFILE is for making it
	want[58] = strings.Replace(want[58], "/tmp/linked (deleted)", "/tmp/final", 1)
	got := descriptions(t, v.pid)
	for n, w := range want {
		g := got[n]
		if strings.HasPrefix(w, "(deleted)") {
			g = withoutName(g)
		}
		if g != w {
			t.Errorf("descriptor %d is %q, was %q", n, g, w)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d descriptors, want %d", len(got), len(want))
	}
	content(t, v, 53, "deleted content", 0)
	content(t, v, 53, "far", 5<<20)
	content(t, v, 55, "tmpfile", 0)
	content(t, v, 57, "the first", 0)
	var st unix.Stat_t
	if err := unix.Fstat(v.fd(53), &st); err != nil {
		t.Fatal(err)
	}
	if st.Uid != 1234 || st.Gid != 5678 || st.Mode&0o7777 != 0o604 || st.Blocks > 200 || st.Nlink != 0 {
		t.Errorf("restored deleted file: %+v", st)
	}
	// Both openings of the deleted file are of one file again.
	if _, err := unix.Write(v.fd(54), []byte("!")); err != nil {
		t.Fatal(err)
	}
	content(t, v, 53, "!", 5<<20+3)
	if same, err := sameDescription(v.fd(50), v.fd(51)); err != nil || !same {
		t.Errorf("descriptors 50 and 51 share no description (%v)", err)
	}
}

// withoutName cuts the path of a deleted file.
func withoutName(s string) string {
	if i := strings.Index(s, "(deleted)"); i >= 0 {
		return s[i:]
	}
	return s
}

func content(t *testing.T, v *restored, n int, want string, at int64) {
	t.Helper()
	b := make([]byte, len(want))
	if k, err := unix.Pread(v.fd(n), b, at); err != nil || string(b[:k]) != want {
		t.Errorf("descriptor %d at %d has %q (%v), want %q", n, at, b[:k], err, want)
	}
}
