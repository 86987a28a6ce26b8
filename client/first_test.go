package client

import (
	"io"
	"net"
	"testing"
	"time"
)

func TestFirstConnection(t *testing.T) {
	pipe := func() (*first, net.Conn, net.Conn) {
		here, there := net.Pipe()
		t.Cleanup(func() { here.Close(); there.Close() })
		return newFirst(here), here, there
	}
	closed := func(there net.Conn) bool {
		_ = there.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		_, err := there.Read(make([]byte, 1))
		return err == io.EOF
	}

	f, here, there := pipe()
	if c := f.take(f.made.Add(patience)); c != here {
		t.Error("the first request did not get it")
	}
	if c := f.take(f.made); c != nil {
		t.Error("a second request got it")
	}
	if f.close(); closed(there) {
		t.Error("it was closed, though somebody had taken it")
	}

	f, _, there = pipe()
	if c := f.take(f.made.Add(patience + 1)); c != nil || !closed(there) {
		t.Errorf("one that has waited too long was given away (%v), or not closed", c)
	}

	f, _, there = pipe()
	if f.close(); f.take(f.made) != nil || !closed(there) {
		t.Error("one that nobody took was not closed")
	}
}
