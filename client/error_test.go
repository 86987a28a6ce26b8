package client_test

import (
	"errors"
	"net"
	"testing"

	"github.com/sandtree/sandtree/client"
)

// Such a request is never sent, so a socket is enough.
func TestBytesThatAreNotTextAreRefusedByName(t *testing.T) {
	socket := t.TempDir() + "/api.sock"
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := client.Dial(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.SandboxHandle("sb-x").Stat(t.Context(), "/tmp/\xff", false)
	var e *client.Error
	if !errors.As(err, &e) || e.Kind != client.Invalid || e.Hint == "" {
		t.Errorf("a path with the byte 0xff: %v", err)
	}
}
