package wire_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/wire"
)

// openDescriptors counts what this process has open.
func openDescriptors(t *testing.T) int {
	t.Helper()
	es, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(es)
}

// connect serves mux on one end of a pair and returns a client of the other.
// When the test ends, all descriptors must be closed again.
func connect(t *testing.T, mux *wire.Mux, onEvent func(wire.Event)) (*wire.Conn, *wire.Peer) {
	t.Helper()
	warmPoller(t)
	before := openDescriptors(t)
	a, b := pair(t)
	p := wire.NewPeer(b, mux, slog.New(slog.DiscardHandler))
	served := make(chan error, 1)
	go func() { served <- p.Serve(t.Context()) }()
	c := wire.NewConn(a, onEvent)
	t.Cleanup(func() {
		c.Close()
		c.Wait()
		<-served
		if after := openDescriptors(t); after != before {
			t.Errorf("%d descriptors open, %d before", after, before)
		}
	})
	return c, p
}

// warmPoller opens the runtime's own descriptors, which stay.
func warmPoller(t *testing.T) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	w.Close()
}

func pair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	fa, fb, err := wire.Pair()
	if err != nil {
		t.Fatal(err)
	}
	if a, err = wire.Open(fa); err != nil {
		t.Fatal(err)
	}
	if b, err = wire.Open(fb); err != nil {
		t.Fatal(err)
	}
	return a, b
}

type sum struct{ A, B int }

func TestCallsRunConcurrently(t *testing.T) {
	mux := wire.NewMux()
	release := make(chan struct{})
	wire.Handle(mux, "add", func(_ context.Context, s sum, _ []*os.File) (int, []*os.File, error) {
		<-release
		return s.A + s.B, nil, nil
	})
	wire.Handle(mux, "release", func(context.Context, wire.None, []*os.File) (wire.None, []*os.File, error) {
		close(release)
		return wire.None{}, nil, nil
	})
	c, _ := connect(t, mux, nil)
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			got, _, err := wire.Call[int](t.Context(), c, "add", sum{i, 1})
			if err != nil || got != i+1 {
				t.Errorf("add(%d, 1) = %d, %v", i, got, err)
			}
		})
	}
	if _, _, err := wire.Call[wire.None](t.Context(), c, "release", wire.None{}); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
}

func TestErrorsKeepKindAndHint(t *testing.T) {
	mux := wire.NewMux()
	for verb, err := range map[string]error{
		"conflict": fault.New(fault.Conflict, "pool %q is busy", "x").WithHint("wait"),
		"plain":    errors.New("no kind"),
		"wrapped":  fmt.Errorf("outer: %w", fault.New(fault.NotFound, "inner")),
		"canceled": context.Canceled,
		"deadline": context.DeadlineExceeded,
	} {
		wire.Handle(mux, verb, func(context.Context, wire.None, []*os.File) (wire.None, []*os.File, error) {
			return wire.None{}, nil, err
		})
	}
	wire.Handle(mux, "panic", func(context.Context, wire.None, []*os.File) (wire.None, []*os.File, error) { panic("oh") })
	wire.Handle(mux, "int", func(context.Context, int, []*os.File) (wire.None, []*os.File, error) { return wire.None{}, nil, nil })
	c, _ := connect(t, mux, nil)
	for _, tt := range []struct {
		verb string
		kind fault.Kind
		text string
		hint string
	}{
		{"conflict", fault.Conflict, `pool "x" is busy`, "wait"},
		{"plain", fault.Internal, "no kind", ""},
		{"wrapped", fault.NotFound, "outer: inner", ""},
		{"canceled", fault.Canceled, "context canceled", ""},
		{"deadline", fault.Deadline, "context deadline exceeded", ""},
		{"panic", fault.Internal, "panic: panic: oh", ""},
		{"unknown", fault.Unsupported, `verb "unknown" is not known here`, "the two processes are of different versions of sandtree"},
	} {
		_, _, err := wire.Call[wire.None](t.Context(), c, tt.verb, wire.None{})
		if !fault.Is(err, tt.kind) || err.Error() != tt.text || fault.HintOf(err) != tt.hint {
			t.Errorf("%s: %q kind %q hint %q", tt.verb, err, fault.KindOf(err), fault.HintOf(err))
		}
	}
	if _, _, err := wire.Call[wire.None](t.Context(), c, "int", "text"); !fault.Is(err, fault.Invalid) {
		t.Errorf("parameters of the wrong type: %v", err)
	}
}

func TestCancelReachesTheHandler(t *testing.T) {
	mux := wire.NewMux()
	started, ended := make(chan struct{}), make(chan struct{})
	wire.Handle(mux, "wait", func(ctx context.Context, _ wire.None, _ []*os.File) (wire.None, []*os.File, error) {
		close(started)
		<-ctx.Done()
		close(ended)
		// The reply nobody waits for has a descriptor, which must not leak.
		f, err := os.Open("/dev/null")
		return wire.None{}, []*os.File{f}, err
	})
	wire.Handle(mux, "ping", func(context.Context, wire.None, []*os.File) (wire.None, []*os.File, error) {
		return wire.None{}, nil, nil
	})
	c, _ := connect(t, mux, nil)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-started; cancel() }()
	if _, _, err := wire.Call[wire.None](ctx, c, "wait", wire.None{}); !fault.Is(err, fault.Canceled) {
		t.Errorf("canceled call: %v", err)
	}
	<-ended
	if _, _, err := wire.Call[wire.None](ctx, c, "ping", wire.None{}); !fault.Is(err, fault.Canceled) {
		t.Errorf("call with an ended context: %v", err)
	}
	if _, _, err := wire.Call[wire.None](t.Context(), c, "ping", wire.None{}); err != nil {
		t.Errorf("the connection is of no use after a cancel: %v", err)
	}
}

func TestPeerDeathFailsPendingCalls(t *testing.T) {
	mux := wire.NewMux()
	started := make(chan struct{}, 10)
	handlerEnded := make(chan struct{}, 10)
	wire.Handle(mux, "wait", func(ctx context.Context, _ wire.None, _ []*os.File) (wire.None, []*os.File, error) {
		started <- struct{}{}
		<-ctx.Done()
		handlerEnded <- struct{}{}
		return wire.None{}, nil, nil
	})
	c, p := connect(t, mux, nil)
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if _, _, err := wire.Call[wire.None](t.Context(), c, "wait", wire.None{}); !fault.Is(err, fault.Unavailable) {
				t.Errorf("pending call: %v", err)
			}
		})
	}
	for range 10 {
		<-started
	}
	p.Close()
	wg.Wait()
	<-c.Done()
	for range 10 {
		<-handlerEnded
	}
	if _, _, err := wire.Call[wire.None](t.Context(), c, "wait", wire.None{}); !fault.Is(err, fault.Unavailable) {
		t.Errorf("call after the end: %v", err)
	}
}

func TestEventsComeInOrder(t *testing.T) {
	const n = 1000
	got := make(chan string, n)
	c, p := connect(t, wire.NewMux(), func(e wire.Event) { got <- e.Name + string(e.Data) })
	_ = c
	for i := range n {
		if !p.Notify("tick", i) {
			t.Fatal("cut off")
		}
	}
	for i := range n {
		if s, want := <-got, fmt.Sprintf("tick%d", i); s != want {
			t.Fatalf("event %q, want %q", s, want)
		}
	}
}

func TestClientThatTakesNoEventsIsCutOff(t *testing.T) {
	a, b := pair(t)
	defer a.Close()
	p := wire.NewPeer(b, wire.NewMux(), slog.New(slog.DiscardHandler))
	served := make(chan error, 1)
	go func() { served <- p.Serve(t.Context()) }()
	big := strings.Repeat("x", 1000)
	n := 0
	for p.Notify("tick", big) {
		if n++; n > 1e6 {
			t.Fatal("never cut off")
		}
	}
	if err := <-served; err != nil {
		t.Errorf("serve: %v", err)
	}
}

func TestDescriptorsTravelBothWays(t *testing.T) {
	mux := wire.NewMux()
	// Each file is read, and a pipe with its content comes back for it.
	wire.Handle(mux, "echo", func(_ context.Context, _ wire.None, files []*os.File) (int, []*os.File, error) {
		var out []*os.File
		for _, f := range files {
			b, err := io.ReadAll(f)
			if err != nil {
				return 0, out, err
			}
			r, w, err := os.Pipe()
			if err != nil {
				return 0, out, err
			}
			out = append(out, r)
			w.Write(b)
			w.Close()
		}
		return len(files), out, nil
	})
	c, _ := connect(t, mux, nil)
	for _, n := range []int{0, 1, 3, 253, 254, 600} {
		var in []*os.File
		for i := range n {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(w, "content %d", i)
			w.Close()
			in = append(in, r)
		}
		got, out, err := wire.Call[int](t.Context(), c, "echo", wire.None{}, in...)
		if err != nil || got != n || len(out) != n {
			t.Fatalf("%d files: %d read, %d came back: %v", n, got, len(out), err)
		}
		for i, f := range out {
			b, err := io.ReadAll(f)
			if want := fmt.Sprintf("content %d", i); err != nil || string(b) != want {
				t.Errorf("file %d of %d: %q, %v", i, n, b, err)
			}
			flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0)
			if err != nil || flags&unix.FD_CLOEXEC == 0 {
				t.Errorf("file %d is not close-on-exec: %v", i, err)
			}
			f.Close()
			in[i].Close()
		}
	}
}

func TestTooMuchForOneMessage(t *testing.T) {
	mux := wire.NewMux()
	wire.Handle(mux, "files", func(_ context.Context, n int, _ []*os.File) (wire.None, []*os.File, error) {
		f, err := os.Open("/dev/null")
		if err != nil {
			return wire.None{}, nil, err
		}
		out := make([]*os.File, n)
		for i := range out {
			out[i] = f
		}
		return wire.None{}, out, nil
	})
	wire.Handle(mux, "text", func(_ context.Context, n int, _ []*os.File) (string, []*os.File, error) {
		return strings.Repeat("x", n), nil, nil
	})
	wire.Handle(mux, "len", func(_ context.Context, s string, _ []*os.File) (int, []*os.File, error) {
		return len(s), nil, nil
	})
	c, _ := connect(t, mux, nil)
	if _, _, err := wire.Call[wire.None](t.Context(), c, "files", wire.MaxFiles+1); !fault.Is(err, fault.Exhausted) {
		t.Errorf("too many files: %v", err)
	}
	if _, _, err := wire.Call[string](t.Context(), c, "text", wire.MaxBody); !fault.Is(err, fault.Exhausted) {
		t.Errorf("too large a result: %v", err)
	}
	if _, _, err := wire.Call[int](t.Context(), c, "len", strings.Repeat("x", wire.MaxBody)); !fault.Is(err, fault.Exhausted) {
		t.Errorf("too large a request: %v", err)
	}
	if n, _, err := wire.Call[int](t.Context(), c, "len", strings.Repeat("x", 4<<20)); err != nil || n != 4<<20 {
		t.Errorf("4 MiB request: %d, %v", n, err)
	}
}

func TestFilesOfErrorsAreClosed(t *testing.T) {
	mux := wire.NewMux()
	wire.Handle(mux, "fail", func(context.Context, wire.None, []*os.File) (wire.None, []*os.File, error) {
		f, err := os.Open("/dev/null")
		if err != nil {
			return wire.None{}, nil, err
		}
		return wire.None{}, []*os.File{f}, errors.New("no")
	})
	wire.Handle(mux, "open", func(context.Context, wire.None, []*os.File) (string, []*os.File, error) {
		f, err := os.Open("/dev/null")
		return "text", []*os.File{f}, err
	})
	c, _ := connect(t, mux, nil)
	in, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	for _, verb := range []string{"fail", "unknown", "open"} {
		// The result of open does not decode as a number.
		_, out, err := wire.Call[int](t.Context(), c, verb, wire.None{}, in)
		if err == nil || len(out) > 0 {
			t.Errorf("%s: %d files, %v", verb, len(out), err)
		}
	}
	in.Close()
	if _, _, err := wire.Call[int](t.Context(), c, "open", wire.None{}, in); err == nil {
		t.Error("a closed file was sent")
	}
}

func BenchmarkCall(b *testing.B) {
	mux := wire.NewMux()
	wire.Handle(mux, "add", func(_ context.Context, s sum, _ []*os.File) (int, []*os.File, error) {
		return s.A + s.B, nil, nil
	})
	wire.Handle(mux, "open", func(context.Context, wire.None, []*os.File) (wire.None, []*os.File, error) {
		f, err := os.Open(os.DevNull)
		return wire.None{}, []*os.File{f}, err
	})
	fa, fb, err := wire.Pair()
	if err != nil {
		b.Fatal(err)
	}
	sa, err := wire.Open(fa)
	if err != nil {
		b.Fatal(err)
	}
	sb, err := wire.Open(fb)
	if err != nil {
		b.Fatal(err)
	}
	go wire.NewPeer(sb, mux, slog.New(slog.DiscardHandler)).Serve(b.Context())
	c := wire.NewConn(sa, nil)
	defer c.Close()
	b.Run("plain", func(b *testing.B) {
		for b.Loop() {
			if _, _, err := wire.Call[int](b.Context(), c, "add", sum{1, 2}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("descriptor", func(b *testing.B) {
		for b.Loop() {
			_, files, err := wire.Call[wire.None](b.Context(), c, "open", wire.None{})
			if err != nil {
				b.Fatal(err)
			}
			files[0].Close()
		}
	})
}
