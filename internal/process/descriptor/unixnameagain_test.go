package descriptor

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// Names that a socket had which was closed, and another one has now: that of clients
// who connect again before the other end of their old connection was closed.
var namesAgainScript = namesScript[:strings.Index(namesScript, "os.mkdir")] + `
put(listen("\0who"), 50)
for n in (51, 52): # clients that are gone
    c = client("\0who", "\0again"); put(so(50).accept()[0], n); c.send(b"left"); c.close()
put(client("\0who", "\0again"), 53); put(so(50).accept()[0], 54)
c = client("\0who", "\0more"); put(so(50).accept()[0], 55); c.close()
put(listen("\0more"), 56); put(client("\0more"), 57); put(so(56).accept()[0], 58)
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
		51: {"@who", "@again"}, 52: {"@who", "@again"}, 53: {"@again", "@who"}, 54: {"@who", "@again"}, 55: {"@who", "@more"},
		58: {"@more", "@"}, 61: {"@gone", "@client61"}, 63: {"@gone", "@client63"}, 71: {"@client61", "@gone"}, 73: {"@client63", "@gone"},
	} {
		for i, get := range []func(int) (unix.Sockaddr, error){unix.Getsockname, unix.Getpeername} {
			a, err := get(v.fd(n))
			if u, ok := a.(*unix.SockaddrUnix); err != nil || !ok || u.Name != want[i] {
				t.Errorf("descriptor %d has the names %+v (%v), want %s", n, a, err, want)
			}
		}
	}
	for _, n := range []int{51, 52} {
		expectRead(t, v.fd(n), "left")
		expectEOF(t, v.fd(n))
	}
	expectEOF(t, v.fd(55))
	for a, b := range map[int]int{53: 54, 57: 58, 61: 71, 63: 73} {
		expectConnected(t, v.fd(a), v.fd(b))
	}
}

// A client that was closed before it was accepted has its name until it is.
func TestUnixNamesOfClosedClientsThatWait(t *testing.T) {
	b := newBody(t)
	reads := openQueue(t)
	for i, what := range []string{`client("\0who%d", "\0again%d")`, `client("\0who%d", "\0again%d").close()`} {
		p := b.python(t, namesScript[:strings.Index(namesScript, "os.mkdir")]+fmt.Sprintf(`
l = listen("\0who%d"); client("\0who%d", "\0again%d").close(); c = `+what+`
print("ready", flush=True)
sys.stdin.read()
`, i, i, i, i, i))
		p.reads = reads
		if _, err := p.capture(t); !fault.Passes(err) || !strings.Contains(err.Error(), "had the name @again") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
