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
# names of listeners that are gone: of a client of one that listens, of clients of another that is gone,
# of one that only has it, and of a client that is gone
def left(name, n): # a connection to name
    l = listen(name); put(client(name), n); put(l.accept()[0], n + 1); l.close()
left("\0old", 81); put(listen("\0new"), 80); put(client("\0new", "\0old"), 83); put(so(80).accept()[0], 84)
left("\0old2", 85); l = listen("\0new2")
put(client("\0new2"), 87); put(l.accept()[0], 88); put(client("\0new2", "\0old2"), 89); put(l.accept()[0], 90); l.close()
left("\0old3", 91); s = S.socket(S.AF_UNIX); s.bind("\0old3"); put(s, 93)
left("\0old4", 94); c = client("\0new", "\0old4"); put(so(80).accept()[0], 96); c.send(b"left"); c.close()
left("\0old5", 97); l = listen("\0new5") # as the second, in another order
put(client("\0new5"), 99); put(l.accept()[0], 100); c = client("\0new5", "\0old5"); put(l.accept()[0], 101); put(c, 102); l.close()
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
		82: {"@old", "@"}, 83: {"@old", "@new"}, 84: {"@new", "@old"}, 86: {"@old2", "@"}, 88: {"@new2", "@"}, 89: {"@old2", "@new2"},
		90: {"@new2", "@old2"}, 92: {"@old3", "@"}, 95: {"@old4", "@"}, 96: {"@new", "@old4"},
		98: {"@old5", "@"}, 100: {"@new5", "@"}, 101: {"@new5", "@old5"}, 102: {"@old5", "@new5"},
	} {
		for i, get := range []func(int) (unix.Sockaddr, error){unix.Getsockname, unix.Getpeername} {
			a, err := get(v.fd(n))
			if u, ok := a.(*unix.SockaddrUnix); err != nil || !ok || u.Name != want[i] {
				t.Errorf("descriptor %d has the names %+v (%v), want %s", n, a, err, want)
			}
		}
	}
	for _, n := range []int{51, 52, 96} {
		expectRead(t, v.fd(n), "left")
		expectEOF(t, v.fd(n))
	}
	expectEOF(t, v.fd(55))
	for a, b := range map[int]int{53: 54, 57: 58, 61: 71, 63: 73, 81: 82, 83: 84, 85: 86, 87: 88, 89: 90, 91: 92, 94: 95, 97: 98, 99: 100, 101: 102} {
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
