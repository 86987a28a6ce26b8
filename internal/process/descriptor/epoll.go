package descriptor

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

// epoll are interest lists. Which entries are ready is not kept: an
// edge-triggered one may report once more.
type epoll struct{ simple }

func (epoll) name() image.FileKind { return image.Epoll }

func (epoll) claims(c *Capturer, d *description) bool { return c.isAnonymous(d, "[eventpoll]") }

func (epoll) examine(c *Capturer, d *description) error {
	text, err := c.info(d)
	if err != nil {
		return err
	}
	entries, err := parseWatches(text)
	if err != nil {
		return err
	}
	var holders []int
	for p := range c.tables {
		if len(entries) > 0 && c.holds(p, d.index) {
			holders = append(holders, p)
		}
	}
	seen := map[int]int{} // entries that had the same number so far
	for _, e := range entries {
		nth := seen[e.watch.Number]
		seen[e.watch.Number]++
		at, err := c.watched(d, holders, e, nth)
		if err != nil {
			return err
		}
		if at < 0 {
			return c.refuse(d, fmt.Sprintf("an epoll that watches a file (added as descriptor %d) which no process has any more", e.watch.Number), "close it")
		}
		e.watch.File = at
		d.file.Watches = append(d.file.Watches, e.watch)
	}
	return nil
}

// entry is a line of an epoll's fdinfo.
type entry struct {
	watch image.Watch
	ino   uint64 // of the file that is watched
}

// parseWatches reads lines like
// "tfd:        5 events:       19 data:                7  pos:0 ino:e sdev:f"
// (proc_pid_fdinfo(5)).
func parseWatches(text []byte) (out []entry, err error) {
	for line := range bytes.Lines(text) {
		if !bytes.HasPrefix(line, []byte("tfd:")) {
			continue
		}
		var e entry
		var got int
		// "data:                7" and "pos:0" both occur: values may stand
		// apart from their names.
		for rest := strings.TrimSpace(string(line)); rest != ""; {
			name, after, ok := strings.Cut(rest, ":")
			after = strings.TrimLeft(after, " ")
			value, next, _ := strings.Cut(after, " ")
			if !ok {
				break
			}
			rest = strings.TrimLeft(next, " ")
			var v uint64
			base := 16
			if name == "tfd" || name == "pos" {
				base = 10
			}
			if v, err = strconv.ParseUint(value, base, 64); err != nil && name != "pos" {
				return nil, fmt.Errorf("line %q of an epoll's fdinfo: %w", line, err)
			}
			switch name {
			case "tfd":
				e.watch.Number = int(v)
			case "events":
				e.watch.Events = uint32(v)
			case "data":
				e.watch.Data = v
			case "ino":
				e.ino = v
			default:
				continue
			}
			got++
		}
		if got != 4 {
			return nil, fmt.Errorf("line %q of an epoll's fdinfo is not understood", line)
		}
		out = append(out, e)
	}
	return out, nil
}

// watched finds the description that an entry is for, or -1. It is nearly
// always what a process that has the epoll still has under the same number.
func (c *Capturer) watched(d *description, holders []int, e entry, nth int) (int, error) {
	try := func(i int) (bool, error) {
		return isWatched(c.descriptions[i].fd, d.fd, e.watch.Number, nth)
	}
	for _, p := range holders {
		if i := c.lookup(p, e.watch.Number); i >= 0 {
			if ok, err := try(i); ok || err != nil {
				return i, err
			}
		}
	}
	for _, sameInode := range []bool{true, false} {
		for i := range c.descriptions {
			if c.descriptions[i].flags&unix.O_PATH != 0 || (c.descriptions[i].stat.Ino == e.ino) != sameInode {
				continue
			}
			if ok, err := try(i); ok || err != nil {
				return i, err
			}
		}
	}
	return -1, nil
}

// holds reports whether a process has a descriptor of a description.
func (c *Capturer) holds(proc, description int) bool {
	for _, d := range c.tables[proc] {
		if d.File == description {
			return true
		}
	}
	return false
}

func (epoll) open(_ *Opened, f *image.File) (int, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return -1, fmt.Errorf("epoll_create1: %w", err)
	}
	return fd, setFlags(fd, f.Flags)
}
