package client_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
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

// A daemon that ends in the middle of a call does not answer: nobody has
// canceled anything, and it is no defect of what was asked.
func TestBrokenConnectionsAreUnavailable(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	big := strings.Repeat("x", 1<<20)
	// How far the daemon gets before it ends: bytes of the request that it reads.
	for _, n := range []int64{24, 60, 100} {
		c, err := client.Dial(serveUntil(t, n))
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.CreateSandbox(ctx, client.SandboxConfig{Env: map[string]string{"A": big}})
		if client.KindOf(err) != client.Unavailable || client.HintOf(err) == "" {
			t.Errorf("a daemon that ended after %d bytes: %s: %v", n, client.KindOf(err), err)
		}
		_ = c.Close()
	}
}

// serveUntil resets every connection to a new socket after n bytes. There may be several
// for one call: a connection that is reset before the request has its stream gives way to
// another.
func serveUntil(t *testing.T, n int64) (socket string) {
	t.Helper()
	socket = t.TempDir() + "/api.sock"
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	t.Cleanup(func() { _ = l.Close(); served.Wait() })
	served.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			served.Go(func() {
				_, _ = io.WriteString(c, "\x00\x00\x00\x04\x00\x00\x00\x00\x00") // its settings
				_, _ = io.CopyN(io.Discard, c, n)
				_ = c.Close() // with data unread: a reset
			})
		}
	})
	return socket
}
