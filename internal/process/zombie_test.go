package process

import (
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/confine"
	"github.com/sandtree/sandtree/internal/process/image"
)

func TestCredentialsOfAZombie(t *testing.T) {
	const text = "Name:\tUid:\t1\nState:\tZ (zombie)\nUid:\t1048576\t1049576\t1049577\t5\nGid:\t1048577\t1048578\t1048579\t1048580\n" +
		"FDSize:\t0\nGroups:\t1048583 1048584 \nThreads:\t1\nCapInh:\t0000000000000401\nCapPrm:\t0000000000000403\n" +
		"CapEff:\t0000000000000001\nCapBnd:\t00000000a80425fb\nCapAmb:\t0000000000000400\nNoNewPrivs:\t1\n"
	ids := &idMaps{users: []idRange{{0, 1 << 20, 1 << 16}}, groups: []idRange{{0, 1 << 20, 1 << 16}}}
	got, err := parseCredentials([]byte(text), ids)
	if err != nil {
		t.Fatal(err)
	}
	want := &image.Credentials{
		UID: [4]int{0, 1000, 1001, 0}, GID: [4]int{1, 2, 3, 4}, Groups: []int{7, 8}, Inheritable: 0x401, Permitted: 0x403,
		Effective: 1, Bounding: 0xa80425fb, Ambient: 0x400, NoNewPrivs: true,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got, err := parseCredentials([]byte(strings.Replace(text, "1048583 1048584 ", "", 1)), ids); err != nil || len(got.Groups) != 0 {
		t.Errorf("without groups: %+v, %v", got, err)
	}
	many := strings.Replace(text, "Groups:\t", "Groups:\t"+strings.Repeat("1048583 ", maxGroups), 1)
	if got, err := parseCredentials([]byte(many), ids); err != nil || len(got.Groups) != maxGroups {
		t.Errorf("with %d groups: %+v, %v", maxGroups+2, got, err)
	}
	for _, bad := range []string{
		"", strings.Replace(text, "\t5\n", "\n", 1), strings.Replace(text, "CapEff", "CapXxx", 1), strings.Replace(text, "1048584", "x", 1),
	} {
		if _, err := parseCredentials([]byte(bad), ids); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

// A zombie of an image that does not tell whose it was has credentials that the next
// checkpoint may hold.
func TestZombieOfAnOlderVersion(t *testing.T) {
	for _, p := range []confine.Policy{{}, {Setuid: true}, {Capabilities: 1 << unix.CAP_CHOWN}} {
		w, err := confine.New(p)
		if err != nil {
			t.Fatal(err)
		}
		c := endedAs(&image.Process{State: image.Zombie}, w)
		if err := c.Check(w); err != nil || c.NoNewPrivs == p.Setuid || c.Permitted != w.Policy().Capabilities {
			t.Errorf("%+v: %+v, %v", p, c, err)
		}
	}
}
