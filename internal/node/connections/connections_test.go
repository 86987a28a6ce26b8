package connections_test

import (
	"bufio"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sandtree/sandtree/internal/node/connections"
)

const most = 8

// serve answers /; /wait is answered when release is closed, and entered says that it
// was asked. idled says each time that a connection gets idle, which is a moment after its
// client has the answer.
func serve(t *testing.T) (dial func() net.Conn, entered, idled <-chan struct{}, release chan<- struct{}) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "socket")
	raw, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	in, idle, out := make(chan struct{}, 100), make(chan struct{}, 100), make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/wait", func(http.ResponseWriter, *http.Request) { in <- struct{}{}; <-out })
	mux.HandleFunc("/", func(http.ResponseWriter, *http.Request) {})
	l := connections.Bound(raw, most, slog.New(slog.DiscardHandler))
	var p http.Protocols
	p.SetHTTP1(true)
	p.SetUnencryptedHTTP2(true)
	state := func(c net.Conn, s http.ConnState) {
		l.State(c, s)
		if s == http.StateIdle {
			idle <- struct{}{}
		}
	}
	s := &http.Server{Handler: mux, Protocols: &p, ConnState: state, ReadHeaderTimeout: time.Minute}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close(); <-done })
	return func() net.Conn {
		t.Helper()
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}, in, idle, out
}

func ask(c net.Conn, path string) error {
	if _, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		return err
	}
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err
	}
	return r.Body.Close()
}

// closed waits until the other side has closed a connection.
func closed(t *testing.T, c net.Conn) {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("it is not closed")
	}
}

// Clients that open many connections and use none, also in the middle of a frame, do not
// keep others out, and those that are in use go on.
func TestIdleConnectionsGiveWay(t *testing.T) {
	dial, entered, idled, release := serve(t)
	used := dial()
	answer := make(chan error, 1)
	go func() { answer <- ask(used, "/wait") }()
	<-entered
	first := dial()
	if err := ask(first, "/"); err != nil {
		t.Fatal(err)
	}
	<-idled
	for range 3 * most {
		if _, err := io.WriteString(dial(), "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x00\x40"); err != nil {
			t.Fatal(err)
		}
		dial()
	}
	closed(t, first)
	if err := ask(dial(), "/"); err != nil {
		t.Errorf("another client: %v", err)
	}
	close(release)
	if err := <-answer; err != nil {
		t.Errorf("the connection in use: %v", err)
	}
}

// If all are in use, one more is closed, and there is room when one ends.
func TestAllInUse(t *testing.T) {
	dial, entered, idled, release := serve(t)
	answers := make(chan error, most)
	for range most {
		c := dial()
		go func() { answers <- ask(c, "/wait") }()
		<-entered
	}
	closed(t, dial())
	close(release)
	for range most {
		if err := <-answers; err != nil {
			t.Error(err)
		}
	}
	<-idled
	if err := ask(dial(), "/"); err != nil {
		t.Errorf("when one is idle: %v", err)
	}
}
