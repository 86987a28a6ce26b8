package memory

import (
	"bytes"
	"fmt"
	"sort"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

// ParseMaps parses the text of /proc/PID/maps (proc_pid_maps(5)). The page of
// [vsyscall], which every process has, is left out.
func ParseMaps(text []byte) ([]image.VMA, error) {
	out := make([]image.VMA, 0, bytes.Count(text, []byte{'\n'}))
	for n := 1; len(text) > 0; n++ {
		line, rest, ok := bytes.Cut(text, []byte{'\n'})
		if !ok {
			return nil, fmt.Errorf("maps: line %d is cut short", n)
		}
		text = rest
		v, err := parseLine(line)
		if err != nil {
			return nil, fmt.Errorf("maps: line %d (%q): %w", n, line, err)
		}
		if v.Name == "[vsyscall]" {
			continue
		}
		if k := len(out); k > 0 && out[k-1].End > v.Start {
			return nil, fmt.Errorf("maps: line %d (%q): overlaps the one before", n, line)
		}
		out = append(out, v)
	}
	return out, nil
}

// ReadMaps reads the mappings of a process, by its number here, as the kernel has them now.
func ReadMaps(host int) ([]image.VMA, error) {
	text, err := readFile(host, "maps")
	if err != nil {
		return nil, err
	}
	return ParseMaps(text)
}

// scanner takes fields from a line.
type scanner struct {
	rest []byte
	err  error
}

func (s *scanner) fail(what string) uint64 {
	if s.err == nil {
		s.err = fmt.Errorf("no %s", what)
	}
	return 0
}

// number takes digits of a base up to a delimiter, which it takes too.
func (s *scanner) number(base uint64, delim byte, what string) (v uint64) {
	for i, c := range s.rest {
		d := uint64(16)
		switch {
		case c == delim && i > 0:
			s.rest = s.rest[i+1:]
			return v
		case c >= '0' && c <= '9':
			d = uint64(c - '0')
		case c >= 'a' && c <= 'f':
			d = uint64(c-'a') + 10
		}
		if d >= base || v > 1<<60 {
			break
		}
		v = v*base + d
	}
	return s.fail(what)
}

func parseLine(line []byte) (image.VMA, error) {
	s := scanner{rest: line}
	var v image.VMA
	v.Start = s.number(16, '-', "start")
	v.End = s.number(16, ' ', "end")
	if s.err == nil && len(s.rest) < 5 {
		s.fail("protection")
	}
	if s.err != nil {
		return v, s.err
	}
	for i, bit := range []int{unix.PROT_READ, unix.PROT_WRITE, unix.PROT_EXEC} {
		if s.rest[i] != '-' {
			v.Prot |= bit
		}
	}
	v.Shared = s.rest[3] == 's'
	s.rest = s.rest[5:]
	v.Offset = s.number(16, ' ', "offset")
	major, minor := s.number(16, ':', "device"), s.number(16, ' ', "device")
	v.Dev = unix.Mkdev(uint32(major), uint32(minor))
	// The inode is the last field of a mapping without a name.
	s.rest = append(s.rest[:len(s.rest):len(s.rest)], ' ')
	v.Ino = s.number(10, ' ', "inode")
	if s.err != nil {
		return v, s.err
	}
	if v.End <= v.Start || v.Start%4096 != 0 || v.End%4096 != 0 {
		return v, fmt.Errorf("no range of pages")
	}
	// What pads a name stands before it. Behind it is the space that was put there.
	name(&v, bytes.TrimSuffix(bytes.TrimLeft(s.rest, " "), []byte{' '}))
	return v, nil
}

var (
	deletedSuffix = []byte(" (deleted)")
	anonPrefix    = []byte("[anon:")
	anonShmem     = []byte("[anon_shmem:")
)

// name tells from a mapping's name what backs it.
func name(v *image.VMA, n []byte) {
	switch {
	case len(n) == 0, bytes.HasPrefix(n, anonPrefix):
		v.Kind = image.Anonymous
	case string(n) == "[heap]":
		v.Kind, v.Name = image.Anonymous, "[heap]"
	case string(n) == "[stack]":
		v.Kind, v.Name = image.Stack, "[stack]"
	case bytes.HasPrefix(n, anonShmem):
		v.Kind = image.SharedAnonymous
	case n[0] == '[':
		v.Kind, v.Name = image.VDSO, string(n)
	default:
		v.Kind = image.FileBacked
		if bytes.HasSuffix(n, deletedSuffix) {
			v.Deleted = true
			n = n[:len(n)-len(deletedSuffix)]
		}
		v.Path = unescape(n)
		switch {
		case v.Path == "/dev/zero" && !v.Shared:
			v.Kind = image.Anonymous
		case v.Shared && v.Deleted:
			v.Kind = image.SharedAnonymous
		}
	}
}

// newline is how maps shows a newline in a path, and these four characters, too.
var newline = []byte(`\012`)

// unescape undoes what the kernel does to a newline in a path.
func unescape(n []byte) string {
	if !bytes.Contains(n, newline) {
		return string(n)
	}
	return string(bytes.ReplaceAll(n, newline, []byte{'\n'}))
}

// readNames reads the names of mapped files that maps does not tell for sure, since they
// have a newline or look as if: the links to the files tell it (proc_pid_map_files(5)).
func readNames(host int, vmas []image.VMA) error {
	for i := range vmas {
		v := &vmas[i]
		if !strings.Contains(v.Path, "\n") {
			continue
		}
		var b [unix.PathMax]byte
		link := fmt.Sprintf("/proc/%d/map_files/%x-%x", host, v.Start, v.End)
		n, err := unix.Readlink(link, b[:])
		if err != nil {
			return fmt.Errorf("read %s: %w", link, err)
		}
		if v.Path = string(b[:n]); v.Deleted {
			v.Path = strings.TrimSuffix(v.Path, string(deletedSuffix))
		}
	}
	return nil
}

// Find returns the mapping that holds addr, or nil.
func Find(vs []image.VMA, addr uint64) *image.VMA {
	lo := endingAfter(vs, addr)
	if lo < len(vs) && vs[lo].Start <= addr {
		return &vs[lo]
	}
	return nil
}

// endingAfter is the index of the first mapping that ends behind an address.
func endingAfter(vs []image.VMA, addr uint64) int {
	return sort.Search(len(vs), func(i int) bool { return vs[i].End > addr })
}

// overlapping are the mappings of a sorted list that have something of a span. A process
// may have tens of thousands, so nobody goes through all of them for each of them.
func overlapping(vs []image.VMA, s span) []image.VMA {
	vs = vs[endingAfter(vs, s.start):]
	return vs[:sort.Search(len(vs), func(i int) bool { return vs[i].Start >= s.end })]
}
