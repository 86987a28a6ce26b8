package sandbox

import (
	"strings"

	"github.com/sandtree/sandtree/internal/confine"
	"github.com/sandtree/sandtree/internal/fault"
)

// Command is what Exec runs.
type Command struct {
	// Argv: without a slash in it, Argv[0] is looked up in Env's PATH, inside.
	Argv []string
	// Env are "NAME=value". Nothing is added.
	Env []string
	// Dir is the working directory. Empty: the user's home, or / if that
	// cannot be entered.
	Dir  string
	User User
	// TTY makes the command's standard input its controlling terminal.
	TTY bool
}

// User are credentials inside. The zero value is root.
type User struct {
	confine.User
	Home string // for Command.Dir
}

// Bounds of a command. The kernel's own are wider (execve(2)).
const (
	maxArguments = 1 << 20 // bytes of Argv and Env, with their pointers
	maxPathDirs  = 128
	maxGroups    = 1024
	maxDir       = 4095
)

// DefaultPath is looked in when Env has no PATH.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// check refuses what can never run, before anything is done.
func (c *Command) check() error {
	if len(c.Argv) == 0 || c.Argv[0] == "" {
		return fault.New(fault.Invalid, "no command is given")
	}
	size := 0
	for _, list := range [][]string{c.Argv, c.Env} {
		for _, s := range list {
			if strings.ContainsRune(s, 0) {
				return fault.New(fault.Invalid, "a NUL byte in %.80q", s)
			}
			size += len(s) + 24
		}
	}
	if size > maxArguments {
		return fault.New(fault.Invalid, "command %.80q: arguments and environment have %d bytes, at most %d are allowed", c.Argv[0], size, maxArguments).
			WithHint("pass the data in a file or on standard input")
	}
	for _, d := range []string{c.Dir, c.User.Home} {
		if len(d) > maxDir || strings.ContainsRune(d, 0) {
			return fault.New(fault.Invalid, "command %.80q: %.80q cannot be a directory's path", c.Argv[0], d)
		}
	}
	if c.Dir != "" && c.Dir[0] != '/' {
		return fault.New(fault.Invalid, "command %.80q: the working directory %.80q is not absolute", c.Argv[0], c.Dir)
	}
	if len(c.User.Groups) > maxGroups {
		return fault.New(fault.Invalid, "command %.80q: %d supplementary groups, at most %d are allowed", c.Argv[0], len(c.User.Groups), maxGroups)
	}
	for _, id := range append([]uint32{c.User.UID, c.User.GID}, c.User.Groups...) {
		if id >= confine.MappedIDs {
			return fault.New(fault.Invalid, "user or group %d: a sandbox has none above %d", id, confine.MappedIDs-1)
		}
	}
	return nil
}

// candidates are the paths to try, in order (execvp(3)).
func (c *Command) candidates() []string {
	name := c.Argv[0]
	if strings.Contains(name, "/") {
		return []string{name}
	}
	path := DefaultPath
	for _, e := range c.Env { // the last one counts, as for most programs
		if v, ok := strings.CutPrefix(e, "PATH="); ok {
			path = v
		}
	}
	dirs := strings.Split(path, ":")
	dirs = dirs[:min(len(dirs), maxPathDirs)]
	var out []string
	for _, d := range dirs {
		if d == "" {
			d = "."
		}
		if len(d)+len(name) < maxDir {
			out = append(out, d+"/"+name)
		}
	}
	return out
}
