package descriptor

import (
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/xattr"
	"github.com/sandtree/sandtree/internal/process/image"
)

// examineDeleted prepares a file without a name, whose content has to be
// saved since no snapshot has it.
func (c *Capturer) examineDeleted(d *description) error {
	d.file.Object = c.object(d)
	if err := keepOwner(d); err != nil {
		return err
	}
	// A file that is open for writing is not in a lower layer, so its link
	// count is right, and it has a name somewhere.
	if d.stat.Nlink > 0 && d.writable() {
		return c.refuse(d, fmt.Sprintf("the file %s, which was unlinked there but has another name elsewhere,", d.file.Path),
			"open it by the name it has")
	}
	if err := c.refuseLeased(d, "the deleted file "+d.file.Path); err != nil {
		return err
	}
	if !c.isFirst(d) {
		return nil
	}
	if c.saved += d.stat.Blocks * 512; c.saved > c.env.MaxContent {
		return c.refuse(d, fmt.Sprintf("the deleted file %s of %d bytes (%d bytes to save in all, limit %d)",
			d.file.Path, d.stat.Size, c.saved, c.env.MaxContent), "close it or give it a name")
	}
	return nil
}

// keepOwner keeps what a file without a name is given when it is made anew.
func keepOwner(d *description) (err error) {
	d.file.UID, d.file.GID, d.file.Modified = d.stat.Uid, d.stat.Gid, d.stat.Mtim
	if d.file.Attributes, err = xattr.Read(procFD(d.fd)); err != nil {
		return fmt.Errorf("attributes of %s: %w", d.file.Path, err)
	}
	return nil
}

// refuseLeased refuses a file whose content is to be read, if it has a lease that opening it
// would break: its holder was told, and the opening would wait for it for 45 s (fcntl(2)).
func (c *Capturer) refuseLeased(d *description, what string) error {
	if d.flags&unix.O_PATH != 0 {
		return nil
	}
	if lease, err := unix.FcntlInt(uintptr(d.fd), unix.F_GETLEASE, 0); err == nil && lease == unix.F_WRLCK {
		return c.refuse(d, what+" with a write lease, which looking at it would break,", "let it give up the lease")
	}
	return nil
}

// saveContent copies at most limit bytes of a deleted file to an anonymous one,
// holes left out.
func (c *Capturer) saveContent(d *description, limit int64) error {
	from, err := unix.Open(procFD(d.fd), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOATIME, 0)
	if err != nil {
		return fmt.Errorf("save the deleted file %s: %w", d.file.Path, err)
	}
	defer unix.Close(from)
	to, err := unix.MemfdCreate("deleted", unix.MFD_CLOEXEC)
	if err != nil {
		return fmt.Errorf("save the deleted file %s: memfd_create: %w", d.file.Path, err)
	}
	err = copyData(to, from, d.stat.Size, limit)
	if err == unix.EFBIG { // blocks on disk can be fewer than bytes
		_ = unix.Close(to)
		return c.refuse(d, fmt.Sprintf("the deleted file %s of %d bytes (limit %d)", d.file.Path, d.stat.Size, limit),
			"close it or give it a name")
	}
	if err != nil {
		_ = unix.Close(to)
		return fmt.Errorf("save the deleted file %s: %w", d.file.Path, err)
	}
	d.file.Blob = &image.Blob{File: os.NewFile(uintptr(to), "deleted"), Size: d.stat.Size}
	return nil
}

// copyData makes a new file the same as another: its length and what stands
// between its holes. It moves the positions of both. It copies no more than
// limit bytes, or fails with EFBIG.
func copyData(to, from int, size, limit int64) error {
	if err := unix.Ftruncate(to, size); err != nil {
		return fmt.Errorf("ftruncate: %w", err)
	}
	for end := int64(0); ; {
		start, err := unix.Seek(from, end, unix.SEEK_DATA)
		if err == unix.ENXIO { // a hole up to the end
			return nil
		}
		if err == nil {
			end, err = unix.Seek(from, start, unix.SEEK_HOLE)
		}
		if err == nil {
			_, err = unix.Seek(to, start, unix.SEEK_SET)
		}
		if err != nil {
			return fmt.Errorf("lseek: %w", err)
		}
		if limit -= end - start; limit < 0 {
			return unix.EFBIG
		}
		for start < end {
			n, err := unix.Sendfile(to, from, &start, int(min(end-start, 1<<30)))
			if err == unix.EINTR {
				continue
			}
			if err != nil {
				return fmt.Errorf("sendfile: %w", err)
			}
			if n == 0 { // cut by somebody meanwhile
				break
			}
		}
	}
}

// recreateFile makes a file without a name that has a deleted file's content,
// owner and mode.
func (o *Opened) recreateFile(f *image.File) (int, error) {
	if f.Blob == nil {
		return -1, errNoContent(f)
	}
	dir, _, err := o.parent(f.Path)
	if err != nil {
		return -1, err
	}
	defer unix.Close(dir)
	var fd int
	err = asOwner(f.UID, f.GID, func() (err error) {
		fd, err = unix.Openat(dir, ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, f.Mode&0o7777)
		return err
	})
	if err == unix.EOPNOTSUPP {
		err = asOwner(f.UID, f.GID, func() error {
			return o.unnamed(dir, func(name string) (err error) {
				fd, err = unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_RDWR|unix.O_CLOEXEC, f.Mode&0o7777)
				return err
			})
		})
	}
	if err != nil {
		return -1, fmt.Errorf("make a file without a name: %w", err)
	}
	if err := fill(fd, f); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func fill(fd int, f *image.File) error {
	// An opening of our own: others may restore from the same blob.
	from, err := unix.Open(procFD(int(f.Blob.File.Fd())), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("saved content: %w", err)
	}
	defer unix.Close(from)
	if err := copyData(fd, from, f.Blob.Size, math.MaxInt64); err != nil {
		return fmt.Errorf("write saved content: %w", err)
	}
	if err := unix.Fchown(fd, int(f.UID), int(f.GID)); err != nil {
		return fmt.Errorf("fchown: %w", err)
	}
	if err := unix.Fchmod(fd, f.Mode&0o7777); err != nil {
		return fmt.Errorf("fchmod: %w", err)
	}
	return finish(fd, f)
}

// finish gives a file or directory that was made anew its attributes and time. It is owned, and
// has its mode, already.
func finish(fd int, f *image.File) error {
	if err := xattr.Write(procFD(fd), f.Attributes); err != nil {
		return fmt.Errorf("setxattr: %w", err)
	}
	if f.Modified == (unix.Timespec{}) { // of a directory in a record that has none
		return nil
	}
	omit := unix.Timespec{Nsec: unix.UTIME_OMIT}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, procFD(fd), []unix.Timespec{omit, f.Modified}, 0); err != nil {
		return fmt.Errorf("utimensat: %w", err)
	}
	return nil
}

func errNoContent(f *image.File) error {
	return fault.New(fault.Internal, "the deleted file %s has no content in the image", f.Path)
}
