package descriptor

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Names that a socket had which was closed, and another one has now: that of clients
// who connect again before the other end of their old connection was closed.
var namesAgainScript = namesScript[:strings.Index(namesScript, "os.mkdir")] + `
# clients with names whose other ends come first, and nobody listens any more
l = listen("\0gone")
for n in (61, 63): put(client("\0gone", "\0client%d" % n), n + 10); put(l.accept()[0], n)
l.close()
print("ready", flush=True)
sys.stdin.read()
`

func TestUnixNamesUsedAgain(t *testing.T) {
	b := newBody(t)
	p := b.python(t, namesAgainScript)
	want := descriptions(t, p.Process.Pid)
	v := newBody(t).restore(t, p.mustCapture(t))
	sameTable(t, want, v)
	for n, want := range map[int][2]string{
		61: {"@gone", "@client61"}, 63: {"@gone", "@client63"}, 71: {"@client61", "@gone"}, 73: {"@client63", "@gone"},
	} {
		for i, get := range []func(int) (unix.Sockaddr, error){unix.Getsockname, unix.Getpeername} {
			a, err := get(v.fd(n))
			if u, ok := a.(*unix.SockaddrUnix); err != nil || !ok || u.Name != want[i] {
				t.Errorf("descriptor %d has the names %+v (%v), want %s", n, a, err, want)
			}
		}
	}
	for a, b := range map[int]int{61: 71, 63: 73} {
		expectConnected(t, v.fd(a), v.fd(b))
	}
}
