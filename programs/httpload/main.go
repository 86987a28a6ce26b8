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
	"sync/atomic"
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
	var connections atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Of a body that is read while the answer is written net/http may drop the rest.
		if body, err := io.ReadAll(r.Body); err == nil {
			_, _ = w.Write(body)
		}
	}))
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			connections.Add(1)
		}
	}
	server.Start()
	const clients = 4
	for range clients {
		go client(l, server.URL)
	}
	go func() { // timers and garbage
		for range time.Tick(time.Millisecond) {
			_ = make([]byte, 1<<16)
		}
	}()
	answer(l, func() error {
		if n := connections.Load(); n > clients {
			return fmt.Errorf("%d connections were made by %d clients", n, clients)
		}
		return nil
	})
}

// client asks over and over, on one connection.
func client(l *load, url string) {
	c := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}}
	for n := 0; ; n++ {
		l.step(echo(c, url, strings.Repeat(fmt.Sprintf("%d ", n), n%5000+1)))
	}
}

func echo(c *http.Client, url, body string) error {
	resp, err := c.Post(url, "text/plain", strings.NewReader(body))
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
func answer(l *load, whole func() error) {
	var kept []string
	fmt.Println("0 ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		words := strings.Fields(in.Text())
		if words[1] == "mark" {
			kept = append(kept, words[2])
			fmt.Println(words[0], "ok")
			continue
		}
		err := l.more(100)
		if err == nil {
			err = whole()
		}
		if err != nil {
			fmt.Println(words[0], "bad", err)
			continue
		}
		fmt.Println(words[0], "ok", strings.Join(kept, " "))
	}
}
