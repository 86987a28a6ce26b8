package wire

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// bytesSource is a stream without descriptors, in pieces of one size.
type bytesSource struct {
	r     *bytes.Reader
	piece int
}

func (s bytesSource) Read(p []byte) (int, error) {
	return s.r.Read(p[:min(len(p), s.piece)])
}

func (s bytesSource) receive(p, _ []byte) (n, oobn, flags int, err error) {
	n, err = s.Read(p)
	return n, 0, 0, err
}

func FuzzReader(f *testing.F) {
	whole, err := encode(&message{ID: 1, Verb: "create", Data: []byte(`{"a":1}`)}, 0)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole, 3)
	f.Add(append(bytes.Clone(whole), whole...), 1000)
	f.Add(whole[:len(whole)-1], 1)
	f.Add([]byte{0, 0, 0, 0, 0, 1, 0, 1}, 8)                     // carries descriptors, has none
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0}, 8)         // too large
	f.Add([]byte{0, 0xff, 0xff, 0xff, 0, 0, 0, 0}, 8)            // larger than what follows
	f.Add([]byte{0, 0, 0, 1, 0, 0, 0, 0, '{'}, 8)                // not JSON
	f.Add([]byte{0, 0, 0, 2, 0, 0, 0, 2, '{', '}'}, 8)           // unknown flag
	f.Add([]byte{0, 0, 0, 4, 0, 0, 0, 0, 'n', 'u', 'l', 'l'}, 8) // an empty message
	f.Fuzz(func(t *testing.T, b []byte, piece int) {
		if piece < 1 {
			piece = 1
		}
		r := newReader(bytesSource{bytes.NewReader(b), piece})
		for {
			fr, err := r.next()
			if err != nil {
				if errors.Is(err, io.EOF) && err != io.EOF {
					t.Errorf("a cut frame is reported as the end: %v", err)
				}
				return
			}
			if len(fr.files) > 0 {
				t.Fatal("descriptors from nowhere")
			}
			if _, err := encode(&fr.message, 0); err != nil {
				t.Errorf("what was read cannot be written: %v", err)
			}
		}
	})
}

// descriptors lists what is open, by link target.
func descriptors(t *testing.T) int {
	t.Helper()
	es, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(es)
}

// TestForeignDescriptorsAreClosed sends descriptors where none belong.
func TestForeignDescriptorsAreClosed(t *testing.T) {
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	r, w, err := os.Pipe() // opens the runtime's poller
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	w.Close()
	whole, err := encode(&message{ID: 1, Verb: "ping"}, 0)
	if err != nil {
		t.Fatal(err)
	}
	announced := bytes.Clone(whole)
	announced[5] = 2
	for name, tt := range map[string]struct {
		data   []byte
		at     int // where in data the descriptor is attached
		served bool
	}{
		"not announced":   {whole, 0, false},
		"one missing":     {announced, 0, false},
		"inside header":   {whole, 4, false},
		"inside the body": {whole, headerSize + 3, true},
	} {
		t.Run(name, func(t *testing.T) {
			before := descriptors(t)
			fa, fb, err := Pair()
			if err != nil {
				t.Fatal(err)
			}
			b, err := Open(fb)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := unix.Write(int(fa.Fd()), tt.data[:tt.at]); tt.at > 0 && err != nil {
				t.Fatal(err)
			}
			if err := unix.Sendmsg(int(fa.Fd()), tt.data[tt.at:], unix.UnixRights(int(null.Fd())), nil, 0); err != nil {
				t.Fatal(err)
			}
			fa.Close()
			called := false
			mux := NewMux()
			Handle(mux, "ping", func(_ context.Context, _ None, files []*os.File) (None, []*os.File, error) {
				called = true
				if len(files) > 0 {
					t.Error("the handler got the descriptor")
				}
				return None{}, nil, nil
			})
			err = NewPeer(b, mux, slog.New(slog.DiscardHandler)).Serve(t.Context())
			if called != tt.served || (err == nil) != tt.served {
				t.Errorf("called %t, error %v", called, err)
			}
			if after := descriptors(t); after != before {
				t.Errorf("%d descriptors open, %d before", after, before)
			}
		})
	}
}

// TestFullDescriptorTable takes the room for what arrives away.
func TestFullDescriptorTable(t *testing.T) {
	fa, fb, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer fa.Close()
	b, err := Open(fb)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	data, err := encode(&message{ID: 1, Verb: "ping"}, 2)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Sendmsg(int(fa.Fd()), data, unix.UnixRights(int(null.Fd()), int(null.Fd())), nil, 0); err != nil {
		t.Fatal(err)
	}
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	low := old
	low.Cur = uint64(null.Fd()) + 1 // all below are taken
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	f, err := newReader(newSocket(b)).next()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	if !errors.Is(f.damage, unix.EMFILE) || f.Verb != "ping" {
		t.Errorf("damage %v, verb %q, %d files", f.damage, f.Verb, len(f.files))
	}
}
