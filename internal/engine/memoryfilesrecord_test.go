package engine

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	worker "github.com/sandtree/sandtree/internal/worker/control"
)

// A record that somebody made up leads to no file of the host's and to no device of its.
func TestMadeUpMemoryFilesAreRefused(t *testing.T) {
	const file, dir, link, char, block = unix.S_IFREG | 0o600, unix.S_IFDIR | 0o700, unix.S_IFLNK | 0o777, unix.S_IFCHR | 0o666, unix.S_IFBLK | 0o666
	null, disk := unix.Mkdev(1, 3), unix.Mkdev(8, 0)
	data := func() *os.File {
		fd, err := unix.MemfdCreate("content", unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		return os.NewFile(uintptr(fd), "content")
	}
	for name, c := range map[string]struct {
		files []worker.MemoryFile
		valid bool
	}{
		"none": {valid: true},
		"of all kinds": {valid: true, files: []worker.MemoryFile{
			{Path: "d", Mode: dir}, {Path: "d/f", Mode: file, Data: data()}, {Path: "g", Mode: file, First: "d/f"},
			{Path: "l", Mode: link, Link: "/etc"}, {Path: "null", Mode: char, Rdev: null}, {Path: "gone"}, {Path: "p", Mode: unix.S_IFIFO},
			{Path: "holes", Mode: file, Size: 1 << 20}, {Path: "small", Mode: file, Size: 9, Content: []byte("content")},
		}},
		"through a link":      {files: []worker.MemoryFile{{Path: "l", Mode: link, Link: "/etc"}, {Path: "l/cron.d", Mode: dir}}},
		"through a file":      {files: []worker.MemoryFile{{Path: "f", Mode: file, Data: data()}, {Path: "f/g", Mode: dir}}},
		"above":               {files: []worker.MemoryFile{{Path: "../x", Mode: dir}}},
		"above, later":        {files: []worker.MemoryFile{{Path: "d", Mode: dir}, {Path: "d/../../x", Mode: dir}}},
		"absolute":            {files: []worker.MemoryFile{{Path: "/etc/x", Mode: dir}}},
		"not clean":           {files: []worker.MemoryFile{{Path: "./x", Mode: dir}}},
		"itself":              {files: []worker.MemoryFile{{Path: ".", Mode: dir}}},
		"nothing":             {files: []worker.MemoryFile{{Mode: dir}}},
		"twice":               {files: []worker.MemoryFile{{Path: "l", Mode: link, Link: "/etc"}, {Path: "l", Mode: dir}}},
		"no directory":        {files: []worker.MemoryFile{{Path: "d/e", Mode: dir}}},
		"a disk":              {files: []worker.MemoryFile{{Path: "x", Mode: char, Rdev: disk}}},
		"a block device":      {files: []worker.MemoryFile{{Path: "x", Mode: block, Rdev: null}}},
		"another name of one": {files: []worker.MemoryFile{{Path: "l", Mode: link, Link: "/etc/shadow"}, {Path: "x", Mode: file, First: "l"}}},
		"of the host's":       {files: []worker.MemoryFile{{Path: "x", Mode: file, First: "/etc/shadow"}}},
		"content of a link":   {files: []worker.MemoryFile{{Path: "l", Mode: link, Link: "/etc", Size: 4, Content: []byte("more")}}},
		"more than its size":  {files: []worker.MemoryFile{{Path: "x", Mode: file, Size: 3, Content: []byte("more")}}},
		"a link's number":     {files: []worker.MemoryFile{{Path: "d", Mode: dir, Ino: 7}, {Path: "l", Mode: link, Link: "/etc", Ino: 7}}},
		"a node's number":     {files: []worker.MemoryFile{{Path: "l", Mode: link, Link: "/etc", Ino: 7}, {Path: "null", Mode: char, Rdev: null, Ino: 7}}},
	} {
		for _, s := range []worker.State{{Shm: c.files}, {Dev: c.files}} {
			m, err := memoryFilesOf(&s)
			if c.valid != (err == nil) || err != nil && !fault.Is(err, fault.Invalid) {
				t.Errorf("%s: %v", name, err)
			}
			m.close()
			for i := range c.files { // the content is taken
				if c.files[i].Data != nil {
					c.files[i].Data = data()
				}
			}
		}
	}
}
