package view

import "strings"

// unit is a process, as in "7", or a thread, as in "7 thread 9".
type unit string

// names of what every process and every thread has.
const (
	ofProcess = " command"
	ofThread  = " status Name"
)

// name is that of what says that the unit is there.
func (u unit) name(of string) string { return string(u) + of }

// new reports whether it was not there before.
func (u unit) new(of string, before View) bool { return !u.in(of, before) }

// in reports whether it is in a view.
func (u unit) in(of string, v View) bool {
	_, there := v[u.name(of)]
	return there
}

// shown is what a view has of it; empty: it is not there. A process that just ends has an
// empty command.
func (u unit) shown(of string, v View) string {
	text := v[u.name(of)]
	if text == "" && u.in(of, v) {
		return "without" + of
	}
	return text
}

// whole finds the unit that something is told of, if that is there in one of two views alone,
// and by what that is seen; else it is empty.
func whole(name string, before, after View) (u unit, of string) {
	f := strings.SplitN(name, " ", 4)
	units := []unit{unit(f[0])}
	if len(f) == 4 && f[1] == "thread" {
		units = append(units, unit(strings.Join(f[:3], " ")))
	}
	for i, u := range units {
		of := []string{ofProcess, ofThread}[i]
		if u.in(of, before) != u.in(of, after) {
			return u, of
		}
	}
	return "", ""
}

// comeAndGo reports whether others like it come and go by themselves: processes, or threads of
// the same process.
func (u unit) comeAndGo(moving map[string]bool) bool {
	process, _, thread := strings.Cut(string(u), " thread ")
	for name := range moving {
		if !thread && strings.HasSuffix(name, ofProcess) && strings.Count(name, " ") == 1 ||
			thread && strings.HasPrefix(name, process+" thread ") && strings.HasSuffix(name, ofThread) {
			return true
		}
	}
	return false
}
