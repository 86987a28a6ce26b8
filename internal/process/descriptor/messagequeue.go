package descriptor

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/mqueue"
	"github.com/sandtree/sandtree/internal/process/image"
)

// messageQueue are POSIX message queues (mq_overview(7)). Their
// messages can be looked at only by taking them out: they are put back in the order
// in which they came, which is that of their priority.
type messageQueue struct{ simple }

func (messageQueue) name() image.FileKind { return image.MessageQueues }

func (messageQueue) claims(c *Capturer, d *description) bool {
	return d.format() == unix.S_IFREG && d.flags&unix.O_PATH == 0 && c.system(d) == mqueueMagic
}

func (messageQueue) examine(c *Capturer, d *description) error {
	link, err := c.linkOf(d)
	if err != nil {
		return err
	}
	if d.stat.Nlink == 0 {
		d.file.Deleted = true
		link = link[:len(link)-min(len(deletedSuffix), len(link)-1)]
	}
	// Who opened it below /dev/mqueue shows that, too.
	d.file.Path = "/" + link[strings.LastIndexByte(link, '/')+1:]
	d.file.Object, d.file.UID, d.file.GID = c.object(d), d.stat.Uid, d.stat.Gid
	flags, err := unix.FcntlInt(uintptr(d.fd), unix.F_GETFL, 0)
	if err != nil {
		return fmt.Errorf("flags of message queue %s: %w", d.file.Path, err)
	}
	d.file.Flags |= flags & unix.O_CLOEXEC // mq_open(2) leaves it there
	own, err := unix.Open(procFD(d.fd), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("look at message queue %s: %w", d.file.Path, err)
	}
	defer unix.Close(own)
	a, err := mqueue.GetAttr(own)
	if err != nil {
		return fmt.Errorf("mq_getattr of %s: %w", d.file.Path, err)
	}
	d.file.Queue = &image.POSIXQueue{MaxMessages: a.MaxMessages, MessageSize: a.MessageSize}
	var text [256]byte
	n, err := unix.Pread(own, text[:], 0)
	if err != nil {
		return fmt.Errorf("read message queue %s: %w", d.file.Path, err)
	}
	if !bytes.HasSuffix(bytes.TrimRight(text[:n], " \n"), []byte("NOTIFY_PID:0")) {
		return c.refuse(d, "a message queue that tells a process of its next message (mq_notify)", "take that back or close it")
	}
	return nil
}

func (messageQueue) read(c *Capturer, d *description) (err error) {
	if !c.isFirst(d) {
		return nil
	}
	own, err := unix.Open(procFD(d.fd), unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open message queue %s: %w", d.file.Path, err)
	}
	defer unix.Close(own)
	q := d.file.Queue
	for buf := make([]byte, q.MessageSize); ; {
		n, priority, e := mqueue.Receive(own, buf)
		if e != nil {
			if e != unix.EAGAIN {
				err = fmt.Errorf("take messages out of %s: %w", d.file.Path, e)
			}
			break
		}
		q.Messages = append(q.Messages, image.QueuedMessage{Priority: priority, Text: bytes.Clone(buf[:n])})
	}
	return errors.Join(err, sendAll(own, d.file))
}

func sendAll(fd int, f *image.File) error {
	for i, m := range f.Queue.Messages {
		if err := mqueue.Send(fd, m.Text, m.Priority); err != nil {
			return fmt.Errorf("put %d messages back into %s: %w", len(f.Queue.Messages)-i, f.Path, err)
		}
	}
	return nil
}

func (messageQueue) open(o *Opened, f *image.File) (int, error) {
	if _, err := o.shared(f, o.recreateQueue); err != nil {
		return -1, err
	}
	fd, err := o.target.Queues.Open(f)
	if err == nil && f.Pos != 0 { // of who reads what /dev/mqueue shows of it
		if _, err = unix.Seek(fd, f.Pos, unix.SEEK_SET); err != nil {
			_ = unix.Close(fd)
			return -1, fmt.Errorf("position in message queue %s: %w", f.Path, err)
		}
	}
	return fd, err
}

// recreateQueue makes a queue with its messages, in the incarnation's IPC namespace.
func (o *Opened) recreateQueue(f *image.File) (int, error) {
	fd, err := o.target.Queues.Make(f)
	if err != nil {
		return -1, err
	}
	if err = sendAll(fd, f); err == nil {
		err = unix.Fchown(fd, int(f.UID), int(f.GID))
	}
	if err == nil {
		err = unix.Fchmod(fd, f.Mode&0o7777)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, fmt.Errorf("make message queue %s: %w", f.Path, err)
	}
	return fd, nil
}
