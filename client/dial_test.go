package client

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// busy is a socket whose queue of clients is full; accept takes one of them.
func busy(t *testing.T) (path string, accept func()) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "socket")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	for {
		c, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Close(c) })
		if err = unix.Connect(c, &unix.SockaddrUnix{Name: path}); errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return path, func() {
		c, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
		if err != nil {
			t.Error(err)
		}
		t.Cleanup(func() { _ = unix.Close(c) })
	}
}

// A daemon that is busy with other clients is there: one waits until it is one's turn.
func TestDialWaitsForItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path, accept := busy(t)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, err := dial(ctx, path); !errors.Is(err, unix.EAGAIN) {
			t.Fatalf("while nobody is taken: %v", err)
		}
		done := make(chan error, 1)
		go func() {
			c, err := Dial(path)
			if err == nil {
				err = c.Close()
			}
			done <- err
		}()
		// It pauses now, since it was refused: a connect that is under way is not
		// something that Wait returns for.
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("it did not wait: %v", err)
		default:
		}
		accept()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
