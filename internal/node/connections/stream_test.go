package connections_test

import (
	"context"
	"net"
	"net/http"
	"testing"
	"time"
)

// get asks over HTTP/2 as the clients of the API do, all on one connection that dial made.
func get(t *testing.T, c net.Conn) (ask func(path string) error) {
	t.Helper()
	first := make(chan net.Conn, 1)
	first <- c
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	tr := &http.Transport{Protocols: &p, DialContext: func(context.Context, string, string) (net.Conn, error) {
		select {
		case c := <-first:
			return c, nil
		default:
			return nil, net.ErrClosed // no second one
		}
	}}
	t.Cleanup(tr.CloseIdleConnections)
	client := &http.Client{Transport: tr, Timeout: time.Minute}
	return func(path string) error {
		r, err := client.Get("http://x" + path) //nolint:noctx // the client has a timeout
		if err != nil {
			return err
		}
		return r.Body.Close()
	}
}

// A connection of HTTP/2 is in use as long as one of its streams is open, and gives way
// when none is.
func TestConnectionsWithAnOpenStreamStay(t *testing.T) {
	dial, entered, idled, release := serve(t)
	used, idle := get(t, dial()), get(t, dial())
	answer := make(chan error, 1)
	go func() { answer <- used("/wait") }()
	<-entered
	for what, ask := range map[string]func(string) error{"another stream": used, "another client": idle} {
		if err := ask("/"); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	for range 3 { // both when they began, and the one without a stream now
		<-idled
	}
	for range 3 * most {
		dial()
	}
	if err := get(t, dial())("/"); err != nil {
		t.Errorf("one more client: %v", err)
	}
	if err := idle("/"); err == nil {
		t.Error("the connection without a stream is kept")
	}
	if err := used("/"); err != nil {
		t.Errorf("the connection with an open stream: %v", err)
	}
	close(release)
	if err := <-answer; err != nil {
		t.Errorf("the open stream: %v", err)
	}
}
