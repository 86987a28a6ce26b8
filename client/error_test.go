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
	return serveWith(t, http.NotFoundHandler())
}

func serveWith(t *testing.T, h http.Handler) (socket string) {
	t.Helper()
	socket = t.TempDir() + "/api.sock"
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	s := &http.Server{Handler: h, Protocols: &protocols, ReadHeaderTimeout: time.Minute}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return socket
}

func TestBytesThatAreNotTextAreRefusedByName(t *testing.T) {
	// Nothing is sent: a call without its message would be the empty message, which
	// makes a sandbox of the default template.
	c, err := client.Dial(serveWith(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("%s was called", r.URL.Path)
	})))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, stat := c.SandboxHandle("sb-x").Stat(ctx, "/tmp/\xff", false)
	_, create := c.CreateSandbox(ctx, client.SandboxConfig{Env: map[string]string{"A": "\xff"}})
	for what, err := range map[string]error{"a path": stat, "a variable": create} {
		var e *client.Error
		if !errors.As(err, &e) || e.Kind != client.Invalid || e.Hint == "" {
			t.Errorf("%s with the byte 0xff: %v", what, err)
		}
	}
}
