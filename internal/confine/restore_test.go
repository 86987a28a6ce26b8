package confine_test

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/confine"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/tracee"
)

func (o *body) children(t *testing.T) []int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", o.init.PID(), o.init.PID()))
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, f := range strings.Fields(string(b)) {
		n, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, n)
	}
	return pids
}

// restored makes a parked process in the body and confines it as restore
// does, from the thread that traces it.
func (o *body) restored(t *testing.T, w *confine.Walls, c confine.Credentials) int {
	t.Helper()
	runtime.LockOSThread() // tracees belong to it
	t.Cleanup(runtime.UnlockOSThread)
	before := o.children(t)
	b := tracee.NewBatch()
	b.Fork(tracee.CloneArgs{ExitSignal: uint64(unix.SIGCHLD)}, tracee.EndPark, func(c *tracee.Batch) {
		c.Call(unix.SYS_CLOSE_RANGE, 0, 1<<31-1, 0)
		c.Call(unix.SYS_SETSID)
		c.Call(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, c.PutWords(0), nil, 8)
	})
	if err := o.init.Do(b); err != nil {
		t.Fatal(err)
	}
	now := o.children(t)
	pid := now[slices.IndexFunc(now, func(p int) bool { return !slices.Contains(before, p) })]
	x, err := tracee.Seize(pid, tracee.OptionsRestore)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // PID 1 does not end over a tracee that is not reaped
		_ = unix.Kill(pid, unix.SIGKILL)
		_, _ = unix.Wait4(pid, nil, unix.WALL, nil)
	})
	b = tracee.NewBatch()
	w.Enclose(b)
	w.Assume(b, c, confine.CheckpointRestore)
	if err := x.Run(b); err != nil {
		t.Fatal(err)
	}
	b = tracee.NewBatch()
	// The capability that was kept still works, and no longer afterwards.
	b.Call(unix.SYS_PRCTL, unix.PR_CAPBSET_READ, unix.CAP_CHOWN, 0, 0, 0)
	c.Settle(b)
	confine.Dumpable(b)
	if err := x.Run(b); err != nil {
		t.Fatal(err)
	}
	return pid
}

func TestRestoredIsConfinedAsBooted(t *testing.T) {
	caps := confine.DefaultCapabilities
	for _, tt := range []struct {
		name   string
		policy confine.Policy
		user   confine.User
		creds  confine.Credentials
	}{
		{"root", confine.Policy{}, confine.User{}, confine.Credentials{
			Groups: []uint32{0}, Effective: caps, Permitted: caps, Bounding: caps, NoNewPrivs: true,
		}},
		{"user", confine.Policy{}, confine.User{UID: 1000, GID: 100, Groups: []uint32{100, 27}}, confine.Credentials{
			UID: confine.IDs{Real: 1000, Effective: 1000, Saved: 1000, FS: 1000}, GID: confine.IDs{Real: 100, Effective: 100, Saved: 100, FS: 100},
			Groups: []uint32{100, 27}, Bounding: caps, NoNewPrivs: true,
		}},
		{"setuid", confine.Policy{Setuid: true}, confine.User{}, confine.Credentials{
			Groups: []uint32{0}, Effective: caps, Permitted: caps, Bounding: caps,
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := boot(t)
			w := walls(t, tt.policy)
			var in [2]int
			if err := unix.Pipe2(in[:], unix.O_CLOEXEC); err != nil {
				t.Fatal(err)
			}
			defer unix.Close(in[1])
			_, out := o.start(t, w, tt.user, "wait", in[0])
			unix.Close(in[0])
			defer out.Close()
			if _, err := out.Read(make([]byte, 16)); err != nil {
				t.Fatal(err)
			}
			booted, err := confine.ReadStatus(o.children(t)[0], o.init.PID())
			if err != nil {
				t.Fatal(err)
			}
			if err := tt.creds.Check(w); err != nil {
				t.Fatal(err)
			}
			restored, err := confine.ReadStatus(o.restored(t, w, tt.creds), o.init.PID())
			if err != nil {
				t.Fatal(err)
			}
			if len(booted) < 50 {
				t.Errorf("%d fields", len(booted))
			}
			for _, d := range confine.Compare(booted, restored) {
				// The booted one is a Go program, which raises its own soft
				// limit at its start.
				if d.Known == "" && d.Field != "limit max open files" {
					t.Error(d)
				} else {
					t.Log(d)
				}
			}
		})
	}
}

// Credentials in which every field differs from root's and the user's. Secure
// bit 1 is SECBIT_NOROOT.
func TestOddCredentialsAreRestored(t *testing.T) {
	o := boot(t)
	w := walls(t, confine.Policy{})
	inh := confine.Capabilities(1<<unix.CAP_CHOWN | 1<<unix.CAP_NET_RAW)
	c := confine.Credentials{
		UID: confine.IDs{Real: 1, Effective: 2, Saved: 3, FS: 1}, GID: confine.IDs{Real: 4, Effective: 5, Saved: 6, FS: 4},
		Groups: []uint32{7, 8, 9}, Effective: 1 << unix.CAP_NET_RAW, Permitted: inh, Inheritable: inh,
		Ambient: 1 << unix.CAP_CHOWN, Bounding: inh | 1<<unix.CAP_KILL, SecureBits: 1, NoNewPrivs: true,
	}
	if err := c.Check(w); err != nil {
		t.Fatal(err)
	}
	pid := o.restored(t, w, c)
	s, err := confine.ReadStatus(pid, o.init.PID())
	if err != nil {
		t.Fatal(err)
	}
	hex := func(c confine.Capabilities) string { return fmt.Sprintf("%016x", uint64(c)) }
	host := func(ids ...uint32) string {
		var f []string
		for _, id := range ids {
			h, _ := o.ids.Outside(id)
			f = append(f, fmt.Sprint(h))
		}
		return strings.Join(f, " ")
	}
	for k, want := range map[string]string{
		"Uid": host(1, 2, 3, 1), "Gid": host(4, 5, 6, 4), "Groups": host(7, 8, 9),
		"CapEff": hex(c.Effective), "CapPrm": hex(inh), "CapInh": hex(inh), "CapAmb": hex(c.Ambient), "CapBnd": hex(c.Bounding),
		"NoNewPrivs": "1", "Seccomp": "2", "pid namespaces": "2",
		"namespace user": "the sandbox's", "namespace time": "the host's",
	} {
		if s[k] != want {
			t.Errorf("%s is %q, want %q", k, s[k], want)
		}
	}
}

func TestCredentialsThatExceedTheWalls(t *testing.T) {
	w := walls(t, confine.Policy{})
	good := confine.Credentials{NoNewPrivs: true, Bounding: confine.DefaultCapabilities}
	if err := good.Check(w); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*confine.Credentials){
		"permitted":      func(c *confine.Credentials) { c.Permitted = 1 << unix.CAP_SYS_ADMIN },
		"bounding":       func(c *confine.Credentials) { c.Bounding |= 1 << unix.CAP_SYS_PTRACE },
		"inheritable":    func(c *confine.Credentials) { c.Inheritable = 1 << 63 },
		"effective":      func(c *confine.Credentials) { c.Effective = 1 << unix.CAP_CHOWN },
		"ambient":        func(c *confine.Credentials) { c.Ambient = 1 << unix.CAP_CHOWN },
		"no_new_privs":   func(c *confine.Credentials) { c.NoNewPrivs = false },
		"an outside uid": func(c *confine.Credentials) { c.UID.Saved = 1 << 16 },
	} {
		c := good
		spoil(&c)
		if err := c.Check(w); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestIDMap(t *testing.T) {
	a, err := confine.FamilyIDs(0)
	if err != nil || a.String() != "0 536870912 65536\n" {
		t.Errorf("%q, %v", a, err)
	}
	if in, ok := a.Inside(a.Host + 1000); !ok || in != 1000 {
		t.Errorf("inside %d, %v", in, ok)
	}
	for _, host := range []uint32{0, a.Host - 1, a.Host + 65536} {
		if _, ok := a.Inside(host); ok {
			t.Errorf("host id %d is inside", host)
		}
	}
	for _, n := range []int{-1, 1 << 20} {
		if _, err := confine.FamilyIDs(n); !fault.Is(err, fault.Exhausted) {
			t.Errorf("family %d: %v", n, err)
		}
	}
}

func TestCompare(t *testing.T) {
	a := confine.ProcStatus{"x": "1", "same": "s", "proc owner": "1:1", "gone": "g"}
	b := confine.ProcStatus{"x": "2", "same": "s", "proc owner": "0:0", "new": "n"}
	ds := confine.Compare(a, b)
	var fields []string
	for _, d := range ds {
		fields = append(fields, d.Field)
	}
	if want := []string{"gone", "new", "proc owner", "x"}; !slices.Equal(fields, want) {
		t.Errorf("got %v, want %v", fields, want)
	}
	if u := confine.Unexpected(ds); len(u) != 3 || len(ds) != 4 {
		t.Errorf("unexpected %v", u)
	}
}
