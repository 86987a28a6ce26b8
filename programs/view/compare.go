package view

import (
	"fmt"
	"slices"
	"strings"
)

// Difference is one thing that is not the same.
type Difference struct{ Name, Was, Is string }

// String shows the difference as a line.
func (d Difference) String() string {
	return fmt.Sprintf("%s: was %s, is %s", d.Name, shown(d.Was), shown(d.Is))
}

func shown(s string) string {
	const longest = 400
	switch {
	case s == "":
		return "not there"
	case len(s) > longest:
		return fmt.Sprintf("%q…", s[:longest])
	}
	return fmt.Sprintf("%q", s)
}

// Moving lists what views of one program that ran on differ in: what it
// changes by itself says nothing about a restore. A process, thread,
// descriptor or mapping that came or went is moving with all that is of it.
func Moving(views ...View) map[string]bool {
	out := map[string]bool{}
	for _, v := range views[1:] {
		for _, d := range diff(views[0], v) {
			out[d.Name] = true
		}
	}
	return out
}

// Compare lists what differs beside what moves, by name. Of a process or thread that
// is there in one view alone it says that and no more; where processes, or threads of the
// same one, come and go by themselves, new ones are no difference.
func Compare(before, after View, moving map[string]bool) []Difference {
	var out []Difference
	told := map[string]bool{}
	for _, d := range diff(before, after) {
		process, rest, _ := strings.Cut(d.Name, " ")
		u, of := whole(d.Name, before, after)
		switch {
		case moving[d.Name], moving[process+" command"], u != "" && moving[u.name(of)]:
		case strings.HasPrefix(rest, "map ") && movesMap(process, moving):
		case u == "":
			out = append(out, d)
		case u.new(of, before) && u.comeAndGo(moving), told[string(u)]:
		default:
			told[string(u)] = true
			out = append(out, Difference{string(u), u.shown(of, before), u.shown(of, after)})
		}
	}
	return out
}

// movesMap reports whether a process maps and unmaps memory while it runs.
func movesMap(process string, moving map[string]bool) bool {
	for name := range moving {
		if of, ok := strings.CutPrefix(name, process+" map "); ok && !strings.Contains(of, " ") { // not what is said of one
			return true
		}
	}
	return false
}

func diff(a, b View) []Difference {
	var out []Difference
	for name, was := range a {
		if is, there := b[name]; !there || is != was {
			out = append(out, Difference{name, was, is})
		}
	}
	for name, is := range b {
		if _, there := a[name]; !there {
			out = append(out, Difference{name, "", is})
		}
	}
	slices.SortFunc(out, func(a, b Difference) int { return strings.Compare(a.Name, b.Name) })
	return out
}
