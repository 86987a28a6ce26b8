package sandbox

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/sandtree/sandtree/internal/fault"
)

// maxAccounts is how much of /etc/passwd and /etc/group is read.
const maxAccounts = 1 << 20

// LookupUser finds credentials in the incarnation's /etc/passwd and
// /etc/group. spec is empty (root), or a name or number, with ":" and a
// group's name or number after it for another group than the user's own, which
// then is the only one. A number need not be in the files, and they need not be
// readable for it: whoever spoiled them in a sandbox can repair them there.
func (i *Incarnation) LookupUser(spec string) (User, error) {
	if spec == "" {
		spec = "0"
	}
	passwd, unreadable := i.readSmall("/etc/passwd", maxAccounts)
	group, err := i.readSmall("/etc/group", maxAccounts)
	if unreadable == nil || fault.Is(unreadable, fault.NotFound) {
		unreadable = err
	}
	if unreadable != nil && !fault.Is(unreadable, fault.NotFound) && !numbersOnly(spec) {
		return User{}, unreadable
	}
	return findUser(spec, passwd, group)
}

// numbersOnly reports whether a specification of a user names nothing.
func numbersOnly(spec string) bool {
	user, group, both := strings.Cut(spec, ":")
	_, ok := parseID(user)
	if both && ok {
		_, ok = parseID(group)
	}
	return ok
}

func findUser(spec string, passwd, group []byte) (User, error) {
	name, groupName, ownGroup := strings.Cut(spec, ":")
	u := User{Home: "/"}
	uid, numeric := parseID(name)
	found := false
	accountName := ""
	for f := range accounts(passwd, 7) {
		id, ok := parseID(f[2])
		gid, ok2 := parseID(f[3])
		match := f[0] == name || numeric && id == uid
		if !ok || !ok2 || !match {
			continue
		}
		u.UID, u.GID, accountName, found = id, gid, f[0], true
		if strings.HasPrefix(f[5], "/") && len(f[5]) <= maxDir && !strings.ContainsRune(f[5], 0) {
			u.Home = f[5]
		}
		break
	}
	switch {
	case !found && numeric:
		u.UID = uid
	case !found:
		return User{}, fault.New(fault.NotFound, "user %.80q is not in the sandbox's /etc/passwd", name)
	}
	if ownGroup {
		gid, ok := findGroup(groupName, group)
		if !ok {
			return User{}, fault.New(fault.NotFound, "group %.80q is not in the sandbox's /etc/group", groupName)
		}
		u.GID = gid
		return u, nil
	}
	if found {
		u.Groups = groupsOf(accountName, u.GID, group)
	}
	return u, nil
}

func findGroup(name string, group []byte) (uint32, bool) {
	for f := range accounts(group, 4) {
		if id, ok := parseID(f[2]); ok && f[0] == name {
			return id, true
		}
	}
	return parseID(name)
}

// groupsOf lists the groups that have a user as member, and its own.
func groupsOf(user string, gid uint32, group []byte) []uint32 {
	ids := []uint32{gid}
	for f := range accounts(group, 4) {
		id, ok := parseID(f[2])
		if ok && slices.Contains(strings.Split(f[3], ","), user) && !slices.Contains(ids, id) && len(ids) < maxGroups {
			ids = append(ids, id)
		}
	}
	return ids
}

// accounts yields the lines of a file of accounts that have at least n fields
// (passwd(5), group(5)); the others are passed over, as the C library does.
func accounts(file []byte, n int) func(yield func([]string) bool) {
	return func(yield func([]string) bool) {
		s := bufio.NewScanner(bytes.NewReader(file))
		s.Buffer(nil, maxAccounts+1)
		for s.Scan() {
			if f := strings.Split(s.Text(), ":"); len(f) >= n && f[0] != "" && f[0][0] != '#' {
				if !yield(f) {
					return
				}
			}
		}
	}
}

// parseID reads a number as these files have it; none is above 2³¹.
func parseID(s string) (uint32, bool) {
	n, err := strconv.ParseUint(s, 10, 31)
	return uint32(n), err == nil && s[0] != '+'
}

// readSmall reads a regular file inside, and refuses one of more than limit
// bytes.
func (i *Incarnation) readSmall(path string, limit int) ([]byte, error) {
	f, err := i.OpenFile(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, int64(limit)+1))
	if err != nil {
		return nil, fault.New(fault.Internal, "read the sandbox's %s: %w", path, err)
	}
	if len(b) > limit {
		return nil, fault.New(fault.Invalid, "the sandbox's %s has more than %s", path, size(limit))
	}
	return b, nil
}

func size(n int) string { return fmt.Sprintf("%d KiB", n>>10) }
