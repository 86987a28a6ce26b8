package descriptor

import (
	"bytes"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

// netlinkFamily are netlink sockets (netlink(7)). They speak with the kernel of
// another network namespace after a restore, which looks the same.
type netlinkFamily struct{}

func (netlinkFamily) queue(*Capturer, int) error { return nil }

func (netlinkFamily) read(*Capturer, *description) error { return nil }

func (netlinkFamily) examine(c *Capturer, d *description) error {
	p := []unix.PollFd{{Fd: int32(d.fd), Events: unix.POLLIN}}
	if _, err := poll(p, 0); err != nil {
		return fmt.Errorf("poll: %w", err)
	}
	if p[0].Revents&unix.POLLIN != 0 {
		return c.refuse(d, "a netlink socket with unread messages", "let it read them").Passing()
	}
	var b [64]byte
	n, err := getOption(d.fd, unix.SOL_NETLINK, unix.NETLINK_LIST_MEMBERSHIPS, b[:])
	if err != nil {
		return fmt.Errorf("NETLINK_LIST_MEMBERSHIPS: %w", err)
	}
	for i, v := range b[:n] {
		for bit := range 8 {
			if v>>bit&1 != 0 {
				d.socket.Groups = append(d.socket.Groups, 8*i+bit+1)
			}
		}
	}
	return nil
}

// makeNetlink makes all netlink sockets.
func (w *workshop) makeNetlink() error {
	isNetlink := func(s *image.Socket) bool { return s.Domain == unix.AF_NETLINK }
	if err := w.createAll(isNetlink); err != nil {
		return err
	}
	for i, f := range w.files {
		s := f.Socket
		if s == nil || !isNetlink(s) {
			continue
		}
		// struct sockaddr_nl: family, padding, port, groups.
		if len(s.Local) >= 12 && word(s.Local[4:]) != 0 {
			if err := bindTo(w.fd[i], s.Local); err != nil {
				return fmt.Errorf("bind a netlink socket: %w", err)
			}
		}
		for _, g := range s.Groups {
			if err := unix.SetsockoptInt(w.fd[i], unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, g); err != nil {
				return fmt.Errorf("join netlink group %d: %w", g, err)
			}
		}
		if len(s.Remote) >= 12 && !bytes.Equal(s.Remote[4:12], make([]byte, 8)) {
			if err := connectTo(w.fd[i], s.Remote); err != nil {
				return fmt.Errorf("connect a netlink socket: %w", err)
			}
		}
	}
	return nil
}
