package descriptor

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

// watchQueueSetSize is IOC_WATCH_QUEUE_SET_SIZE (linux/watch_queue.h). With a
// size of 0 it changes nothing, and fails in another way for a notification
// pipe than for a plain one.
const watchQueueSetSize = 0x5760

// examinePipe is what all kinds of pipes have in common.
func (c *Capturer) examinePipe(d *description) error {
	if !c.isFirst(d) {
		return nil
	}
	if err := unix.IoctlSetInt(d.fd, watchQueueSetSize, 0); err == unix.EBUSY || err == unix.EINVAL {
		return c.refuse(d, "a notification pipe", "close it")
	}
	size, err := unix.FcntlInt(uintptr(d.fd), unix.F_GETPIPE_SZ, 0)
	if err != nil {
		return fmt.Errorf("size of a pipe: %w", err)
	}
	d.file.PipeSize = size
	if d.unread, err = unix.IoctlGetInt(d.fd, unix.TIOCINQ); err != nil {
		return fmt.Errorf("unread bytes of a pipe: %w", err)
	}
	if c.saved += int64(d.unread); c.saved > c.env.MaxContent {
		return c.refuse(d, fmt.Sprintf("a pipe with %d unread bytes (%d bytes to save in all, limit %d)",
			d.unread, c.saved, c.env.MaxContent), "let its reader read")
	}
	return nil
}

// readPipe captures the unread data of a pipe with tee(2), which leaves it
// there. from is a descriptor to read from, or -1 to find one.
func (c *Capturer) readPipe(d *description, from int) (err error) {
	n := d.unread
	if n == 0 { // or it is not the first description
		return nil
	}
	if from < 0 {
		from = c.readEnd(d)
	}
	if from < 0 {
		// All readers are gone. Opening one more for a moment harms nobody:
		// the writers meet no reader again afterwards.
		from, err = unix.Open(procFD(d.fd), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open the read end of a pipe: %w", err)
		}
		defer unix.Close(from)
	}
	return readContent(d.file, from, n)
}

// readContent copies the n bytes that a pipe of the file's size holds into the file.
func readContent(f *image.File, from, n int) (err error) {
	if f.Content, f.Packets, err = pipeContent(from, n, f.PipeSize); err != nil || f.Packets != nil {
		return err
	}
	f.Slots, err = pipeSlots(from, f.PipeSize)
	return err
}

// readEnd is a duplicate that can be read from, of the pipe that d is an end
// of, or -1.
func (c *Capturer) readEnd(d *description) int {
	for i := range c.descriptions {
		if e := &c.descriptions[i]; e.readable() && e.format() == unix.S_IFIFO && e.sameInode(d) {
			return e.fd
		}
	}
	return -1
}

// pipeContent copies the n bytes that a pipe holds. Packets are their lengths
// if they were written in packet mode.
func pipeContent(from, n, size int) (data []byte, packets []int, err error) {
	copied, err := teeAll(from, size)
	if err != nil {
		return nil, nil, err
	}
	defer unix.Close(copied)
	data = make([]byte, 0, n)
	for {
		if cap(data)-len(data) == 0 {
			data = append(data, 0)[:len(data)] // somebody wrote meanwhile
		}
		k, err := unix.Read(copied, data[len(data):cap(data)])
		if err == unix.EAGAIN || err == nil && k == 0 {
			break
		}
		if err != nil {
			return nil, nil, fmt.Errorf("read a copied pipe: %w", err)
		}
		data = data[:len(data)+k]
		packets = append(packets, k)
	}
	if len(packets) == 1 {
		one, err := isPacket(from, size)
		if err != nil || !one {
			return data, nil, err
		}
	}
	return data, packets, nil
}

// teeAll copies what a pipe holds to a new one and returns its read end.
func teeAll(from, size int) (int, error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return -1, fmt.Errorf("pipe2: %w", err)
	}
	defer unix.Close(p[1])
	_, err := unix.FcntlInt(uintptr(p[1]), unix.F_SETPIPE_SZ, size)
	if err == nil {
		_, err = unix.Tee(from, p[1], 1<<30, unix.SPLICE_F_NONBLOCK)
	}
	if err != nil && err != unix.EAGAIN {
		_ = unix.Close(p[0])
		return -1, fmt.Errorf("copy a pipe: %w", err)
	}
	return p[0], nil
}

// pipeSlots are how much is in each page that a pipe has, or nil if all but the last
// are full: a pipe with room for nothing more in its pages is moved there one after
// the other. Pages are also those that were spliced into the pipe (splice(2)).
func pipeSlots(from, size int) (slots []int, err error) {
	copied, err := teeAll(from, size)
	if err != nil {
		return nil, err
	}
	defer unix.Close(copied)
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, fmt.Errorf("pipe2: %w", err)
	}
	defer closePair(p)
	if _, err := unix.FcntlInt(uintptr(p[1]), unix.F_SETPIPE_SZ, pipePage); err != nil {
		return nil, fmt.Errorf("size of a pipe: %w", err)
	}
	var page [pipePage]byte
	plain := true
	for {
		n, err := unix.Splice(copied, nil, p[1], nil, 1<<30, unix.SPLICE_F_NONBLOCK)
		if err == unix.EAGAIN || err == nil && n == 0 {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("look at the pages of a pipe: %w", err)
		}
		if n > pipePage || (len(slots)+1)*pipePage > size { // of another make
			return nil, nil
		}
		if _, err := unix.Read(p[0], page[:n]); err != nil {
			return nil, fmt.Errorf("read a page of a pipe: %w", err)
		}
		if k := len(slots); k > 0 && slots[k-1] != pipePage {
			plain = false
		}
		slots = append(slots, int(n))
	}
	if plain {
		return nil, nil
	}
	return slots, nil
}

// pipePage is what one page of a pipe holds.
const pipePage = 4096

func closePair(p [2]int) {
	_ = unix.Close(p[0])
	_ = unix.Close(p[1])
}

// isPacket reports whether what a pipe holds is one packet: reading a byte of
// a packet discards the rest of it.
func isPacket(from, size int) (bool, error) {
	copied, err := teeAll(from, size)
	if err != nil {
		return false, err
	}
	defer unix.Close(copied)
	var one [1]byte
	before, err := unix.IoctlGetInt(copied, unix.TIOCINQ)
	if err != nil {
		return false, fmt.Errorf("unread bytes of a pipe: %w", err)
	}
	if _, err := unix.Read(copied, one[:]); err != nil {
		return false, fmt.Errorf("read a copied pipe: %w", err)
	}
	after, err := unix.IoctlGetInt(copied, unix.TIOCINQ)
	return before > 1 && after == 0, err
}

// fillPipe gives a pipe the captured size and content, by its write end.
func fillPipe(fd int, f *image.File) error {
	now, err := unix.FcntlInt(uintptr(fd), unix.F_GETPIPE_SZ, 0)
	if err == nil && now != f.PipeSize && f.PipeSize != 0 {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, f.PipeSize)
	}
	if err != nil {
		return fmt.Errorf("set the size of a pipe to %d: %w", f.PipeSize, err)
	}
	if len(f.Content) == 0 {
		return nil
	}
	old, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return fmt.Errorf("F_GETFL: %w", err)
	}
	mode := old | unix.O_NONBLOCK
	lengths := []int{len(f.Content)}
	if f.Packets != nil {
		mode |= unix.O_DIRECT
		lengths = f.Packets
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, mode); err != nil {
		return fmt.Errorf("F_SETFL: %w", err)
	}
	data, err := fillSlots(fd, f)
	if err != nil {
		return err
	}
	if f.Slots != nil {
		lengths = []int{len(data)}
	}
	for _, n := range lengths {
		k, err := unix.Write(fd, data[:n])
		if err != nil || k != n {
			return fmt.Errorf("put %d bytes back into a pipe of %d bytes: %d written: %w", n, f.PipeSize, k, err)
		}
		data = data[n:]
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, old); err != nil {
		return fmt.Errorf("F_SETFL: %w", err)
	}
	return nil
}

// fillSlots fills all pages but the last one of a pipe, if they are not as full as
// they can be, and returns the rest. A page that comes from another pipe by tee(2)
// takes nothing more.
func fillSlots(fd int, f *image.File) (rest []byte, err error) {
	rest = f.Content
	if len(f.Slots) == 0 {
		return rest, nil
	}
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, fmt.Errorf("pipe2: %w", err)
	}
	defer closePair(p)
	var page [pipePage]byte
	for _, n := range f.Slots[:len(f.Slots)-1] {
		if n <= 0 || n > min(len(rest), pipePage) {
			return nil, fmt.Errorf("a page of a pipe has %d of %d bytes", n, len(rest))
		}
		if _, err = unix.Write(p[1], rest[:n]); err == nil {
			_, err = unix.Tee(p[0], fd, n, unix.SPLICE_F_NONBLOCK)
		}
		if err == nil {
			_, err = unix.Read(p[0], page[:n])
		}
		if err != nil {
			return nil, fmt.Errorf("put %d bytes back into a pipe of %d bytes: %w", n, f.PipeSize, err)
		}
		rest = rest[n:]
	}
	return rest, nil
}
