package sandbox

import (
	"slices"
	"strings"
	"testing"

	"github.com/sandtree/sandtree/internal/confine"
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
` + "erin:x:1002:1002::/home\x00/erin:/bin/sh\n" + `1000000:x:7:7::/seven:/bin/sh
`

const groups = `root:x:0:
users:x:100:
wheel:x:10:root,alice
audio:x:29:alice
bad:x:zz:alice
alice:x:100:alice
`

func account(uid, gid uint32, home string, groups ...uint32) User {
	return User{User: confine.User{UID: uid, GID: gid, Groups: groups}, Home: home}
}

func TestFindUser(t *testing.T) {
	for _, c := range []struct {
		spec string
		want User
		kind fault.Kind
	}{
		{"root", account(0, 0, "/root", 0, 10), ""},
		{"0", account(0, 0, "/root", 0, 10), ""},
		{"alice", account(1000, 100, "/home/alice", 100, 10, 29), ""},
		{"1000", account(1000, 100, "/home/alice", 100, 10, 29), ""},
		{"alice:wheel", account(1000, 10, "/home/alice"), ""},
		{"alice:77", account(1000, 77, "/home/alice"), ""},
		{"4242", account(4242, 0, "/"), ""},
		{"4242:4243", account(4242, 4243, "/"), ""},
		{"1000000", account(7, 7, "/seven", 7), ""},
		{"dave", account(1001, 1001, "/", 1001), ""},
		{"erin", account(1002, 1002, "/", 1002), ""},
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
		if len(u.Groups) > maxGroups || !strings.HasPrefix(u.Home, "/") || len(u.Home) > maxDir || strings.Contains(u.Home, "\x00") {
			t.Errorf("%q gives %+v", spec, u)
		}
	})
}
