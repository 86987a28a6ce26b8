package client_test

import (
	"context"
	"io"
	"testing"
	"testing/iotest"
	"time"

	"github.com/sandtree/sandtree/client"
)

// A call whose input blocks ends with its context.
func TestBlockedInputIsLeft(t *testing.T) {
	c, err := client.Dial(serve(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	r, w := io.Pipe() // nobody writes
	defer func() { _ = w.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := c.SandboxHandle("sb-x").WriteFile(ctx, client.WriteConfig{Path: "/x"}, iotest.OneByteReader(r))
		done <- err
	}()
	select {
	case err := <-done:
		if err == nil {
			t.Error("no error")
		}
	case <-time.After(20 * time.Second):
		t.Error("the call waits for its input")
	}
}
