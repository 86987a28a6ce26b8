package confine_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sandtree/sandtree/internal/confine"
)

func walls(t *testing.T, p confine.Policy) *confine.Walls {
	t.Helper()
	w, err := confine.New(p)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func checkStatus(t *testing.T, v view, want map[string]string) {
	t.Helper()
	for k, x := range want {
		if v.Status[k] != x {
			t.Errorf("%s is %q, want %q", k, v.Status[k], x)
		}
	}
}

var bounding = fmt.Sprintf("%016x", uint64(confine.DefaultCapabilities))

const noCaps = "0000000000000000"

func TestExecConfinesRoot(t *testing.T) {
	o := boot(t)
	v := o.exec(t, walls(t, confine.Policy{}), confine.User{})
	checkStatus(t, v, map[string]string{
		"CapBnd": bounding, "CapPrm": bounding, "CapEff": bounding, "CapInh": noCaps, "CapAmb": noCaps,
		"NoNewPrivs": "1", "Seccomp": "2", "Seccomp_filters": "1", "SigBlk": noCaps,
		"Uid": "0 0 0 0", "Gid": "0 0 0 0", "Groups": "0",
	})
	for call, want := range map[string]string{
		"clone3": "ENOSYS", "clone user": "EPERM", "unshare": "EPERM", "mount": "EPERM", "keyctl": "EPERM", "bpf": "EPERM",
		"io_uring": "ENOSYS", "aio": "ENOSYS", "userfaultfd": "ENOSYS", "packet": "EAFNOSUPPORT", "vsock": "EAFNOSUPPORT",
		"mptcp": "EPROTONOSUPPORT", "tcp": "ok", "sti": "EPERM", "sti hidden": "EPERM", "tcgets": "ENOTTY",
		"x32": "ENOSYS", "newer": "ENOSYS", "write": "ok", "raise limit": "EPERM",
		"PID 1": "EACCES",
	} {
		if v.Tried[call] != want {
			t.Errorf("%s gave %s, want %s", call, v.Tried[call], want)
		}
	}
	for _, line := range []string{"Max realtime priority     0                    0", "Max core file size        1 "} {
		if !strings.Contains(v.Limits, line) {
			t.Errorf("limits lack %q:\n%s", line, v.Limits)
		}
	}
}

func TestExecConfinesAUser(t *testing.T) {
	o := boot(t)
	v := o.exec(t, walls(t, confine.Policy{}), confine.User{UID: 1000, GID: 1001, Groups: []uint32{1001, 27}})
	checkStatus(t, v, map[string]string{
		"CapBnd": bounding, "CapPrm": noCaps, "CapEff": noCaps, "NoNewPrivs": "1", "Seccomp": "2",
		"Uid": "1000 1000 1000 1000", "Gid": "1001 1001 1001 1001", "Groups": "27 1001",
	})
}

// With setuid allowed, the filter goes in first and all calls after it must
// pass it.
func TestExecAllowsSetuid(t *testing.T) {
	o := boot(t)
	for _, u := range []confine.User{{}, {UID: 1000, GID: 1000}} {
		v := o.exec(t, walls(t, confine.Policy{Setuid: true}), u)
		eff := bounding
		if u.UID != 0 {
			eff = noCaps
		}
		checkStatus(t, v, map[string]string{"CapBnd": bounding, "CapEff": eff, "NoNewPrivs": "0", "Seccomp": "2"})
		if v.Tried["mount"] != "EPERM" || v.Tried["clone3"] != "ENOSYS" {
			t.Errorf("tried %v", v.Tried)
		}
	}
}

func TestLandlock(t *testing.T) {
	o := boot(t)
	for _, tt := range []struct {
		writable []string
		want     string
	}{{[]string{"/dev/shm"}, "ok"}, {[]string{"/dev/null"}, "EACCES"}} {
		if tt.writable[0] == "/dev/null" {
			tt.writable = nil
		}
		v := o.exec(t, walls(t, confine.Policy{Landlock: &confine.Landlock{Writable: tt.writable}}), confine.User{})
		if v.Tried["write"] != tt.want {
			t.Errorf("writable %v: write gave %s, want %s", tt.writable, v.Tried["write"], tt.want)
		}
	}
	if _, err := confine.New(confine.Policy{Landlock: &confine.Landlock{Writable: []string{"tmp"}}}); err == nil {
		t.Error("a relative path was taken")
	}
}
