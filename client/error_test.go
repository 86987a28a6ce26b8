package client_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/sandtree/sandtree/client"
)

// serve answers every request on a new socket with 404.
func serve(t *testing.T) (socket string) {
	t.Helper()
	socket = t.TempDir() + "/api.sock"
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	s := &http.Server{Handler: http.NotFoundHandler(), Protocols: &protocols, ReadHeaderTimeout: time.Minute}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return socket
}

func TestBytesThatAreNotTextAreRefusedByName(t *testing.T) {
	c, err := client.Dial(serve(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err = c.SandboxHandle("sb-x").Stat(ctx, "/tmp/\xff", false)
	var e *client.Error
	if !errors.As(err, &e) || e.Kind != client.Invalid || e.Hint == "" {
		t.Errorf("a path with the byte 0xff: %v", err)
	}
}
