package sandbox

import (
	"slices"
	"strings"
	"testing"

	"github.com/sandtree/sandtree/internal/fault"
)

const passwd = `# accounts
root:x:0:0:root:/root:/bin/bash
broken
:x:5:5::/:
alice:x:1000:100:Alice,,,:/home/alice:/bin/sh
bob:x:x:1:Bob:/home/bob:/bin/sh
carol:x:4294967296:1::/:/bin/sh
dave:x:1001:1001::relative:/bin/sh
1000000:x:7:7::/seven:/bin/sh
`

const groups = `root:x:0:
users:x:100:
wheel:x:10:root,alice
audio:x:29:alice
bad:x:zz:alice
alice:x:100:alice
`

func TestFindUser(t *testing.T) {
	for _, c := range []struct {
		spec string
		want User
		kind fault.Kind
	}{
		{"root", User{Home: "/root", Groups: []int{0, 10}}, ""},
		{"0", User{Home: "/root", Groups: []int{0, 10}}, ""},
		{"alice", User{UID: 1000, GID: 100, Home: "/home/alice", Groups: []int{100, 10, 29}}, ""},
		{"1000", User{UID: 1000, GID: 100, Home: "/home/alice", Groups: []int{100, 10, 29}}, ""},
		{"alice:wheel", User{UID: 1000, GID: 10, Home: "/home/alice"}, ""},
		{"alice:77", User{UID: 1000, GID: 77, Home: "/home/alice"}, ""},
		{"4242", User{UID: 4242, Home: "/"}, ""},
		{"4242:4243", User{UID: 4242, GID: 4243, Home: "/"}, ""},
		{"1000000", User{UID: 7, GID: 7, Home: "/seven", Groups: []int{7}}, ""},
		{"dave", User{UID: 1001, GID: 1001, Home: "/", Groups: []int{1001}}, ""},
		{"bob", User{}, fault.NotFound},
		{"carol", User{}, fault.NotFound},
		{"nobody", User{}, fault.NotFound},
		{"alice:none", User{}, fault.NotFound},
		{"alice:", User{}, fault.NotFound},
		{":wheel", User{}, fault.NotFound},
		{"+5", User{}, fault.NotFound},
		{"-1", User{}, fault.NotFound},
	} {
		got, err := findUser(c.spec, []byte(passwd), []byte(groups))
		if c.kind != "" {
			if !fault.Is(err, c.kind) {
				t.Errorf("%q: error %v, want kind %s", c.spec, err, c.kind)
			}
			continue
		}
		if err != nil || got.UID != c.want.UID || got.GID != c.want.GID || got.Home != c.want.Home || !slices.Equal(got.Groups, c.want.Groups) {
			t.Errorf("%q: %+v (%v), want %+v", c.spec, got, err, c.want)
		}
	}
}

func FuzzFindUser(f *testing.F) {
	f.Add("root", passwd, groups)
	f.Add("alice:wheel", strings.Repeat("a:", 100), ":::\n\n:")
	f.Add(":", "", "")
	f.Fuzz(func(t *testing.T, spec, passwd, group string) {
		u, err := findUser(spec, []byte(passwd), []byte(group))
		if err != nil {
			return
		}
		if u.UID < 0 || u.GID < 0 || len(u.Groups) > maxGroups || !strings.HasPrefix(u.Home, "/") || len(u.Home) > maxDir {
			t.Errorf("%q gives %+v", spec, u)
		}
	})
}
