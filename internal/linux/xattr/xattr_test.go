package xattr

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/sandtree/sandtree/internal/fault"
)

// list is an access control list that names a user.
func list(user uint32) []byte {
	v := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range []struct {
		tag, perm uint16
		id        uint32
	}{{1, 7, ^uint32(0)}, {aclUser, 5, user}, {4, 0, ^uint32(0)}, {16, 5, ^uint32(0)}, {32, 0, ^uint32(0)}} {
		v = binary.LittleEndian.AppendUint16(v, e.tag)
		v = binary.LittleEndian.AppendUint16(v, e.perm)
		v = binary.LittleEndian.AppendUint32(v, e.id)
	}
	return v
}

// What one file has another one gets, by its name and by its descriptor.
func TestAttributesAreKept(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "xattr")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	want := []Attribute{{"system.posix_acl_access", list(1000)}, {"user.empty", []byte{}}, {"user.some", bytes.Repeat([]byte("x"), 1000)}}
	var got [2][]Attribute
	for i := range got {
		name := filepath.Join(dir, fmt.Sprint(i))
		f, err := os.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		if none, err := Read(name); err != nil || none != nil {
			t.Fatalf("a new file has %v (%v)", none, err)
		}
		by := []string{name, fmt.Sprintf("/proc/self/fd/%d", f.Fd())}
		if err := Write(by[i], want); err != nil {
			t.Fatal(err)
		}
		if got[i], err = Read(by[1-i]); err != nil {
			t.Fatal(err)
		}
	}
	for _, g := range got {
		all := map[string][]byte{}
		for _, a := range g {
			all[a.Name] = a.Value
		}
		if len(all) != len(want) {
			t.Fatalf("got %v", g)
		}
		for _, w := range want {
			if !bytes.Equal(all[w.Name], w.Value) {
				t.Errorf("%s: got %q, want %q", w.Name, all[w.Name], w.Value)
			}
		}
	}
}

func TestOthersAreRefused(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"security.capability", "trusted.overlay.opaque", ""} {
		if err := Write(name, []Attribute{{n, []byte("y")}}); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: got %v", n, err)
		}
	}
}

func TestRenumber(t *testing.T) {
	from := []Attribute{{"system.posix_acl_access", list(1000)}, {"user.acl", list(1000)}, {"system.posix_acl_default", []byte{2, 0}}}
	got := Renumber(from, func(id uint32) uint32 { return id + 7 }, func(uint32) uint32 { t.Error("it names no group"); return 0 })
	want := []Attribute{{"system.posix_acl_access", list(1007)}, {"user.acl", list(1000)}, {"system.posix_acl_default", []byte{2, 0}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v", got)
	}
	if !bytes.Equal(from[0].Value, list(1000)) {
		t.Error("the original was changed")
	}
}

// What a file may have is bounded, since who reads it has all of it in memory.
func TestTooManyAreRefused(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "xattr")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	for what, as := range map[string][]Attribute{
		"values": {{"user.a", make([]byte, most/2)}, {"user.b", make([]byte, most/2)}},
		"names":  make([]Attribute, most/200), // the kernel does not list so many (E2BIG)
	} {
		for i := range as {
			if as[i].Name == "" {
				as[i].Name = fmt.Sprintf("user.%0200d", i)
			}
		}
		name := filepath.Join(dir, what)
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := Write(name, as); err != nil {
			t.Fatal(err)
		}
		if _, err := Read(name); !fault.Is(err, fault.Uncapturable) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
