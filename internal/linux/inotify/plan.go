package inotify

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// step is something to do, and which events come of it.
type step struct {
	do   deed
	dir  bool    // the watch is of a directory
	made []Event // one or two
}

type deed int

const (
	touchFile     deed = iota // anything that is done to one file
	moveFile                  // from one watched directory to another
	deleteFile                // the watched one itself
	dropWatch                 // leave the file alone
	overflowQueue             // with what does not count
)

// plan finds the steps that make events again. Not everything can be had: the two halves of a renaming stand
// together, whatever came between them, and so do the last two events of a file that was deleted. Two events are
// left out: that of an unmounted file system, and a second overflow. What no kernel says is an error.
func plan(events []Event) ([]step, error) {
	dirs, ends := lookAhead(events)
	second := map[uint32]int{} // by cookie, where a renaming ends
	for i := range events {
		if events[i].Mask&unix.IN_MOVED_TO != 0 {
			second[events[i].Cookie] = i
		}
	}
	done := make([]bool, len(events))
	overflowed := false
	var out []step
	for i, e := range events {
		if done[i] {
			continue
		}
		s := step{dir: dirs[i], made: []Event{e}}
		switch what := e.Mask &^ unix.IN_ISDIR; {
		case what == unix.IN_Q_OVERFLOW:
			if overflowed {
				continue
			}
			s.do, overflowed = overflowQueue, true
		case e.Watch <= 0 || strings.Contains(e.Name, "/") || e.Name == "." || e.Name == "..":
			return nil, fmt.Errorf("an event of inotify that is none: %+v", e)
		case what == unix.IN_UNMOUNT:
			continue
		case what == unix.IN_IGNORED:
			s.do = dropWatch
		case what == unix.IN_DELETE_SELF:
			s.do = deleteFile
			s.made = append(s.made, Event{Watch: e.Watch, Mask: unix.IN_IGNORED})
			if j := ends[i]; j >= 0 {
				done[j] = true
			}
		case what == unix.IN_MOVED_FROM && e.Name != "":
			if j, ok := second[e.Cookie]; ok && j > i && !done[j] && events[j].Name != "" {
				s.do, done[j] = moveFile, true
				s.made = append(s.made, events[j])
			}
		case what == unix.IN_MOVE_SELF && e.Name == "", e.Name != "" && (what == unix.IN_CREATE || what == unix.IN_DELETE || what == unix.IN_MOVED_TO):
		case slices.Contains(uses, what):
		default:
			return nil, fmt.Errorf("an event of inotify that is none: %+v", e)
		}
		out = append(out, s)
	}
	return out, nil
}

// uses are what may be done to a watched file and to one in a watched directory. Two of them are one when
// a file is shortened that loses its set-user-id bit by that.
var uses = []uint32{
	unix.IN_ACCESS, unix.IN_MODIFY, unix.IN_ATTRIB, unix.IN_OPEN, unix.IN_CLOSE_WRITE, unix.IN_CLOSE_NOWRITE,
	unix.IN_MODIFY | unix.IN_ATTRIB,
}

// lookAhead tells of each event whether its watch is of a directory, as far as this and later
// ones of the same watch show, and where the watch ends, or -1. A number may be another watch's after that.
func lookAhead(events []Event) (dirs []bool, ends []int) {
	dirs, ends = make([]bool, len(events)), make([]int, len(events))
	type later struct {
		dir bool
		end int
	}
	of := map[int]later{}
	for i := len(events) - 1; i >= 0; i-- {
		e := &events[i]
		l, ok := of[e.Watch]
		if !ok || e.Mask&unix.IN_IGNORED != 0 {
			l = later{end: -1}
		}
		if e.Mask&unix.IN_IGNORED != 0 {
			l.end = i
		}
		l.dir = l.dir || e.Name != "" || e.Mask&unix.IN_ISDIR != 0
		dirs[i], ends[i], of[e.Watch] = l.dir, l.end, l
	}
	return dirs, ends
}
