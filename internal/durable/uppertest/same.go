// Package uppertest compares trees of files, for tests.
package uppertest

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Same fails the test for each difference of two trees: names, modes, owners,
// devices, links, times to the nanosecond, attributes, hard links, bytes, and
// where the holes are.
func Same(t testing.TB, a, b string) {
	t.Helper()
	x, y := describe(t, a), describe(t, b)
	for name, want := range x {
		if got := y[name]; got != want {
			t.Errorf("%s:\n  %s\nis\n  %s", name, want, got)
		}
	}
	for name := range y {
		if _, ok := x[name]; !ok {
			t.Errorf("%s is too many", name)
		}
	}
}

// describe has everything of each file in a line, by path.
func describe(t Failer, root string) map[string]string {
	t.Helper()
	out := map[string]string{}
	first := map[uint64]string{}
	walk(t, root, ".", func(path string, st *unix.Stat_t) {
		full := filepath.Join(root, path)
		if path == "." {
			full = root + "/."
		}
		line := fmt.Sprintf("mode %o owner %d:%d mtime %d.%09d atime %d.%09d", st.Mode, st.Uid, st.Gid, st.Mtim.Sec, st.Mtim.Nsec, st.Atim.Sec, st.Atim.Nsec)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFCHR, unix.S_IFBLK:
			line += fmt.Sprintf(" device %#x", st.Rdev)
		case unix.S_IFLNK:
			link, err := os.Readlink(full)
			if err != nil {
				t.Fatal(err)
			}
			line += " to " + link
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			if first[st.Ino] == "" {
				first[st.Ino] = path
			}
			line += fmt.Sprintf(" first %s of %d", first[st.Ino], st.Nlink)
		}
		line += " xattrs " + xattrs(t, full)
		out[path] = line
	})
	// Contents last, since reading may change the time of access.
	for path, line := range out {
		if strings.HasPrefix(line, "mode 100") {
			out[path] += content(t, filepath.Join(root, path))
		}
	}
	return out
}

func walk(t Failer, root, path string, visit func(string, *unix.Stat_t)) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(filepath.Join(root, path), &st); err != nil {
		t.Fatal(err)
	}
	visit(path, &st)
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return
	}
	fd, err := unix.Open(filepath.Join(root, path), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOATIME|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), path)
	names, err := f.Readdirnames(-1)
	f.Close()
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	for _, n := range names {
		walk(t, root, filepath.Join(path, n), visit)
	}
}

func xattrs(t Failer, path string) string {
	t.Helper()
	buf := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, buf)
	if err != nil {
		t.Fatal(path, err)
	}
	var out []string
	for name := range strings.SplitSeq(string(buf[:n]), "\x00") {
		if name == "" {
			continue
		}
		v := make([]byte, 64<<10)
		n, err := unix.Lgetxattr(path, name, v)
		if err != nil {
			t.Fatal(path, name, err)
		}
		out = append(out, fmt.Sprintf("%s=%x", name, v[:n]))
	}
	slices.Sort(out)
	return fmt.Sprint(out)
}

// content sums up a file's bytes and holes.
func content(t Failer, path string) string {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NOATIME|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	holes := ""
	for at := int64(0); at < st.Size(); {
		start, err := unix.Seek(fd, at, unix.SEEK_DATA)
		if err != nil {
			break
		}
		end, err := unix.Seek(fd, start, unix.SEEK_HOLE)
		if err != nil {
			t.Fatal(err)
		}
		holes += fmt.Sprintf(" %d-%d", start, end)
		at = end
	}
	if st.Size() > 64<<20 { // sparse: the runs of data alone
		return fmt.Sprintf(" size %d data%s", st.Size(), holes)
	}
	var b bytes.Buffer
	if _, err := io.Copy(&b, io.NewSectionReader(f, 0, st.Size())); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(" size %d data%s sum %x", st.Size(), holes, sha256.Sum256(b.Bytes()))
}

// Digest sums up all that [Same] compares.
func Digest(t Failer, dir string) string {
	t.Helper()
	files := describe(t, dir)
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(h, "%s %s\n", name, files[name])
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// Failer is the part of testing.TB that is needed.
type Failer interface {
	Helper()
	Fatal(...any)
}
