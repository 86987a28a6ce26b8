package erofs

import (
	"strings"

	"golang.org/x/sys/unix"
)

// maxLinks is how many symbolic links a path may lead through, as in
// path_resolution(7).
const maxLinks = 40

// Follow returns the node that a path leads to for a process whose root is the
// tree's, symbolic links followed to the last, or nil.
func (t *Tree) Follow(path string) *Node {
	at := []*Node{t.Root}
	todo := strings.Split(path, "/")
	for links := 0; len(todo) > 0; {
		name := todo[0]
		todo = todo[1:]
		here := at[len(at)-1]
		switch {
		case !here.IsDir():
			return nil
		case name == "", name == ".":
			continue
		case name == "..":
			at = at[:max(1, len(at)-1)]
			continue
		}
		c := here.Child(name)
		if c == nil {
			return nil
		}
		if c.Kind() != unix.S_IFLNK {
			at = append(at, c)
			continue
		}
		if links++; links > maxLinks {
			return nil
		}
		if strings.HasPrefix(c.Target, "/") {
			at = at[:1]
		}
		todo = append(strings.Split(c.Target, "/"), todo...)
	}
	return at[len(at)-1]
}
