package descriptor

import (
	"bytes"
	"fmt"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

// description is an open file description during a capture.
type description struct {
	fd     int // a duplicate: shares the live description
	stat   unix.Stat_t
	flags  int
	pos    int64
	proc   int // index of the first process that has it
	num    int // and its number there
	kind   kind
	index  int
	file   *image.File
	link   string // see linkOf
	unread int    // bytes in a pipe
	socket *image.Socket
	// carried: it was found on its way in a socket, which is descriptor num of
	// proc, and nowhere before.
	carried bool
	left    bool // nobody has it open
	next    int  // next description of the same bucket, or -1
}

// sameInode reports whether two descriptions are of one inode.
func (d *description) sameInode(e *description) bool {
	return d.stat.Dev == e.stat.Dev && d.stat.Ino == e.stat.Ino
}

func (d *description) format() uint32 { return d.stat.Mode & unix.S_IFMT }

func (d *description) access() int { return d.flags & unix.O_ACCMODE }

func (d *description) readable() bool { return d.access() != unix.O_WRONLY && d.flags&unix.O_PATH == 0 }

func (d *description) writable() bool { return d.access() != unix.O_RDONLY && d.flags&unix.O_PATH == 0 }

// holder says whose a description is.
func (c *Capturer) holder(d *description) string {
	if d.left {
		return "a file that nobody has open"
	}
	return fmt.Sprintf("descriptor %d of process %d", d.num, c.procs[d.proc].PID)
}

// procFD is the name under which this process can open a descriptor of its
// own again.
func procFD(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }

// linkOf is the text of /proc/self/fd/N: a path inside the sandbox, or a name
// that the kernel gives.
func (c *Capturer) linkOf(d *description) (string, error) {
	if d.link == "" {
		dirs, err := self()
		if err != nil {
			return "", err
		}
		var b [unix.PathMax]byte
		n, err := unix.Readlinkat(dirs.fd, strconv.Itoa(d.fd), b[:])
		if err == unix.ENAMETOOLONG {
			return "", c.refuse(d, fmt.Sprintf("a file whose path is longer than the %d bytes that the kernel tells", unix.PathMax-1), "close it")
		}
		if err != nil {
			return "", fmt.Errorf("name of %s: %w", c.holder(d), err)
		}
		d.link = string(b[:n])
	}
	return d.link, nil
}

// info reads /proc/self/fdinfo of a duplicate into the capturer's buffer,
// where it is valid until the next call.
func (c *Capturer) info(d *description) ([]byte, error) {
	dirs, err := self()
	if err != nil {
		return nil, err
	}
	b, err := c.infoIn(dirs.info, d.fd)
	if err != nil {
		return nil, fmt.Errorf("fdinfo of %s: %w", c.holder(d), err)
	}
	return b, nil
}

// self opens the directories of this process's own descriptors, once for the
// process's life: going by them spares most of the lookup of each.
var self = sync.OnceValues(func() (dirs struct{ fd, info int }, err error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC
	if dirs.fd, err = unix.Open("/proc/self/fd", flags, 0); err == nil {
		dirs.info, err = unix.Open("/proc/self/fdinfo", flags, 0)
	}
	if err != nil {
		err = fmt.Errorf("own descriptors in /proc: %w", err)
	}
	return dirs, err
})

// infoIn reads the information on a descriptor from an open directory fdinfo. It is one
// record, so a read that leaves room was the last (seq_file in the kernel's
// Documentation/filesystems).
func (c *Capturer) infoIn(dir, number int) ([]byte, error) {
	return c.slurp(dir, strconv.Itoa(number), true)
}

// slurp reads a whole file of /proc, of one record or of many, into the capturer's buffer.
func (c *Capturer) slurp(dir int, name string, one bool) ([]byte, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if c.text == nil {
		c.text = make([]byte, 16<<10)
	}
	for n := 0; ; {
		if n == len(c.text) {
			c.text = append(c.text, make([]byte, n)...)
		}
		k, err := unix.Read(fd, c.text[n:])
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		n += k
		if k == 0 || one && n < len(c.text) {
			return c.text[:n], nil
		}
	}
}

// field is what stands behind a name in the text of fdinfo.
func field(text []byte, name string) (string, bool) {
	for len(text) > 0 {
		line, rest, _ := bytes.Cut(text, []byte{'\n'})
		if v, ok := bytes.CutPrefix(line, []byte(name)); ok && len(v) > 0 && v[0] == ':' {
			return string(bytes.TrimSpace(v[1:])), true
		}
		text = rest
	}
	return "", false
}
