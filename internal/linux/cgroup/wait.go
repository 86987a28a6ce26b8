package cgroup

import (
	"bytes"
	"context"

	"golang.org/x/sys/unix"
)

// waitEmpty waits until a v2 directory's cgroup.events says that no process is
// in it or below. A group that is removed meanwhile counts as empty.
func waitEmpty(ctx context.Context, dir string) error {
	fd, err := unix.Open(dir+"/cgroup.events", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return pollUntil(ctx, fd, unix.POLLPRI, func() (bool, error) {
		var buf [256]byte
		n, err := unix.Pread(fd, buf[:], 0)
		if err != nil {
			return err == unix.ENODEV, nil
		}
		return bytes.Contains(buf[:n], []byte("populated 0")), nil
	})
}

// pollUntil polls fd until done says so or ctx ends.
func pollUntil(ctx context.Context, fd int, events int16, done func() (bool, error)) error {
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return err
	}
	fired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(fired)
		_, _ = unix.Write(wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	})
	defer func() {
		if !stop() {
			<-fired // it still writes to wake
		}
		unix.Close(wake)
	}()
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		fds := []unix.PollFd{{Fd: int32(fd), Events: events}, {Fd: int32(wake), Events: unix.POLLIN}}
		if _, err := unix.Poll(fds, -1); err != nil && err != unix.EINTR {
			return err
		}
	}
}
