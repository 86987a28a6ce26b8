// Command httpload is a driver for programs' tests: an HTTP server under load
// from clients in the same process, each on one connection that it keeps.
package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"time"
)

// load counts answers, and has the first failure.
type load struct {
	mu      sync.Mutex
	changed *sync.Cond
	done    int
	failure error
}

func (l *load) step(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done++
	if err != nil && l.failure == nil {
		l.failure = err
	}
	l.changed.Broadcast()
}

// more waits until n more answers have come.
func (l *load) more(n int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for goal := l.done + n; l.done < goal && l.failure == nil; {
		l.changed.Wait()
	}
	return l.failure
}

func main() {
	l := &load{}
	l.changed = sync.NewCond(&l.mu)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Of a body that is read while the answer is written net/http may drop the rest.
		if body, err := io.ReadAll(r.Body); err == nil {
			_, _ = w.Write(body)
		}
	}))
	for range 4 {
		go client(l, server.Listener.Addr().String())
	}
	go func() { // timers and garbage
		for range time.Tick(time.Millisecond) {
			_ = make([]byte, 1<<16)
		}
	}()
	answer(l)
}

// client asks over and over, on one connection. It is not an http.Client, which
// makes another connection, in silence, where one has failed.
func client(l *load, address string) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		l.step(err)
		return
	}
	replies := bufio.NewReader(c)
	for n := 0; ; n++ {
		err := echo(c, replies, strings.Repeat(fmt.Sprintf("%d ", n), n%5000+1))
		l.step(err)
		if err != nil {
			return
		}
	}
}

func echo(c net.Conn, replies *bufio.Reader, body string) error {
	req, err := http.NewRequest(http.MethodPost, "http://"+c.RemoteAddr().String(), strings.NewReader(body))
	if err != nil {
		return err
	}
	if err := req.Write(c); err != nil {
		return err
	}
	resp, err := http.ReadResponse(replies, req)
	if err != nil {
		return err
	}
	got, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err == nil && string(got) != body {
		err = fmt.Errorf("%d bytes came back of %d", len(got), len(body))
	}
	return err
}

// answer replies to the test's requests, see the comment of package programs.
func answer(l *load) {
	var kept []string
	fmt.Println("0 ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		words := strings.Fields(in.Text())
		if words[1] == "mark" {
			kept = append(kept, words[2])
			fmt.Println(words[0], "ok")
			continue
		}
		if err := l.more(100); err != nil {
			fmt.Println(words[0], "bad", err)
			continue
		}
		fmt.Println(words[0], "ok", strings.Join(kept, " "))
	}
}
