package session_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/node/session"
	"github.com/sandtree/sandtree/internal/store"
	"github.com/sandtree/sandtree/internal/store/sqlite"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// boundary stands where the supervisor is, and notes what it is asked.
type boundary struct {
	mu    sync.Mutex
	asked []string
	said  chan string
}

func newBoundary() *boundary { return &boundary{said: make(chan string, 100)} }

func (b *boundary) note(format string, a ...any) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := fmt.Sprintf(format, a...)
	b.asked = append(b.asked, s)
	b.said <- s
	return nil
}

func (b *boundary) Signal(_ context.Context, r control.SignalRequest) error {
	return b.note("signal %s %d", r.Session, r.Signal)
}

func (b *boundary) Resize(_ context.Context, r control.ResizeRequest) error {
	return b.note("resize %s %dx%d", r.Session, r.Window.Rows, r.Window.Cols)
}

func (b *boundary) CloseStdin(_ context.Context, r control.SessionRequest) error {
	return b.note("close %s", r.Session)
}

func (b *boundary) Wake(context.Context) error { return nil }

func (b *boundary) Forget(_ context.Context, r control.SessionRequest) error {
	return b.note("forget %s", r.Session)
}

// pipes are a command's ends of its standard streams.
type pipes struct{ in, out, err *os.File }

func (p pipes) close() {
	p.in.Close()
	p.out.Close()
	p.err.Close()
}

// streams makes pipes and returns both sides.
func streams(t *testing.T) (inner pipes, outer []*os.File) {
	t.Helper()
	var fs [6]*os.File
	for i := 0; i < 6; i += 2 {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		fs[i], fs[i+1] = r, w
	}
	return pipes{fs[0], fs[3], fs[5]}, []*os.File{fs[1], fs[2], fs[4]}
}

func open(t *testing.T, b *boundary, deadline time.Time) (*session.Session, store.Store) {
	t.Helper()
	dir := t.TempDir()
	db, err := sqlite.Open(t.Context(), filepath.Join(dir, "db"))
	if err != nil {
		t.Fatal(err)
	}
	rec := store.Session{ID: "se-1", Sandbox: "sb-1", Key: "key", Argv: []string{"x"}, Started: time.Now().UTC(), Deadline: deadline}
	for _, err := range []error{
		db.AddTemplate(t.Context(), store.Template{ID: "tp-1", Name: "t"}),
		db.AddSandbox(t.Context(), store.Sandbox{ID: "sb-1", Template: "tp-1"}),
		db.AddSession(t.Context(), rec),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	s, err := session.New(session.Config{Record: rec, Store: db, Supervisor: b, Dir: dir, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close(); db.Close() })
	return s, db
}

// TestOutputStaysInItsGeneration checks, with any interleaving of two streams,
// rebirths and a follower, that each generation's output comes between its
// marks, whole and in order.
func TestOutputStaysInItsGeneration(t *testing.T) {
	for seed := range uint64(8) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		b := newBoundary()
		s, _ := open(t, b, time.Time{})
		want := map[string]string{}
		f := s.Follow(&session.Position{}, true)
		type seen struct {
			out map[string]string
			err error
		}
		done := make(chan seen, 1)
		go func() {
			got := seen{out: map[string]string{}}
			current := uint64(0)
			got.err = f.Run(context.Background(), func(e session.Event) error {
				switch e := e.(type) {
				case session.Output:
					if e.Generation != current {
						return fmt.Errorf("output of generation %d in %d", e.Generation, current)
					}
					got.out[fmt.Sprint(e.Generation, e.Stream)] += string(e.Data)
				case session.Rebirth:
					if e.Generation != current+1 {
						return fmt.Errorf("mark %d after %d", e.Generation, current)
					}
					current = e.Generation
				}
				return nil
			})
			f.Close()
			done <- got
		}()
		generations := 1 + rnd.Uint64N(5)
		for g := range generations {
			in, out := streams(t)
			state := control.Session{ID: "key", Generation: g}
			var err error
			if g == 0 {
				err = s.Start(state, out)
			} else {
				err = s.Rebirth(state, "cp", out)
			}
			if err != nil {
				t.Fatal(err)
			}
			var written [2]string
			for i := range rnd.IntN(30) {
				n := rnd.IntN(2)
				text := fmt.Sprintf("%d.%d.%d;", g, n, i) + strings.Repeat("x", rnd.IntN(2000))
				[]*os.File{in.out, in.err}[n].WriteString(text)
				written[n] += text
			}
			if g == generations-1 {
				in.close()
				s.SetEnded(t.Context(), g, 0, "")
			} else {
				// All that a generation printed before it ended may be read, or
				// only a part; here it is waited for, to know what to expect.
				for {
					o, e := s.Ends()
					if int(o+e) >= total(want)+len(written[0])+len(written[1]) {
						break
					}
					time.Sleep(time.Millisecond)
				}
				in.close()
			}
			for n, w := range written {
				if w != "" {
					want[fmt.Sprint(g, n)] = w
				}
			}
		}
		got := <-done
		if got.err != nil {
			t.Fatalf("seed %d: %v", seed, got.err)
		}
		for k, w := range want {
			if got.out[k] != w {
				t.Errorf("seed %d: generation and stream %s: %d bytes, want %d", seed, k, len(got.out[k]), len(w))
			}
		}
		if len(got.out) != len(want) {
			t.Errorf("seed %d: %d streams, want %d", seed, len(got.out), len(want))
		}
	}
}

func total(m map[string]string) (n int) {
	for _, s := range m {
		n += len(s)
	}
	return n
}

func TestEndComesAfterAllOutputAndThenTheSupervisorForgets(t *testing.T) {
	b := newBoundary()
	s, db := open(t, b, time.Time{})
	f := s.Follow(&session.Position{}, true)
	defer f.Close()
	in, out := streams(t)
	// The news of the end is faster than the descriptors.
	in.out.WriteString("all of it")
	in.close()
	s.SetEnded(t.Context(), 0, 3, "")
	if err := s.Start(control.Session{ID: "key", PID: 7}, out); err != nil {
		t.Fatal(err)
	}
	var text string
	var end store.Session
	err := f.Run(t.Context(), func(e session.Event) error {
		switch e := e.(type) {
		case session.Output:
			text += string(e.Data)
		case session.End:
			end = e.Record
		}
		return nil
	})
	if err != nil || text != "all of it" || end.ExitCode != 3 || !end.Ended {
		t.Errorf("%q, %+v, %v", text, end, err)
	}
	if said := <-b.said; said != "forget key" {
		t.Errorf("asked %q", said)
	}
	if r, err := db.Session(t.Context(), "se-1"); err != nil || !r.Ended || r.ExitCode != 3 || r.PID != 7 {
		t.Errorf("stored %+v, %v", r, err)
	}
	if err := s.Signal(t.Context(), 15); !fault.Is(err, fault.Conflict) {
		t.Errorf("signal after the end: %v", err)
	}
}

func TestStaleEndIsDropped(t *testing.T) {
	s, _ := open(t, newBoundary(), time.Time{})
	in, out := streams(t)
	defer in.close()
	if err := s.Rebirth(control.Session{ID: "key", Generation: 2}, "cp", out); err != nil {
		t.Fatal(err)
	}
	s.SetEnded(t.Context(), 1, 9, "")
	if s.Ended() {
		t.Error("the end of an earlier generation ended this one")
	}
}

func TestDeadlineKills(t *testing.T) {
	b := newBoundary()
	s, _ := open(t, b, time.Now().Add(20*time.Millisecond))
	in, out := streams(t)
	if err := s.Start(control.Session{ID: "key"}, out); err != nil {
		t.Fatal(err)
	}
	if said := <-b.said; said != "signal key 9" {
		t.Fatalf("asked %q", said)
	}
	in.close()
	s.SetEnded(t.Context(), 0, 137, "")
	if r := s.Record(); r.Reason != session.Timeout {
		t.Errorf("reason %q", r.Reason)
	}
}

func TestInputThatNobodyReads(t *testing.T) {
	s, _ := open(t, newBoundary(), time.Time{})
	in, out := streams(t)
	defer in.close()
	if err := s.Start(control.Session{ID: "key"}, out); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.WriteInput(ctx, make([]byte, 1<<20)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a full pipe: %v", err)
	}
	// Another client's input still comes through once there is room.
	go func() {
		buf := make([]byte, 1<<20)
		for {
			if _, err := in.in.Read(buf); err != nil {
				return
			}
		}
	}()
	if err := s.WriteInput(t.Context(), make([]byte, 1<<20)); err != nil {
		t.Errorf("after there is room: %v", err)
	}
	s.SetEnded(t.Context(), 0, 0, "")
	if err := s.WriteInput(t.Context(), []byte("late")); err != nil {
		t.Errorf("input after the end: %v", err)
	}
}

func TestClosedSessionLetsFollowersGo(t *testing.T) {
	s, _ := open(t, newBoundary(), time.Time{})
	in, out := streams(t)
	defer in.close()
	if err := s.Start(control.Session{ID: "key"}, out); err != nil {
		t.Fatal(err)
	}
	f := s.Follow(nil, true)
	defer f.Close()
	done := make(chan error, 1)
	go func() { done <- f.Run(t.Context(), func(session.Event) error { return nil }) }()
	s.Close()
	if err := <-done; !fault.Is(err, fault.Unavailable) {
		t.Errorf("follower: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s2, _ := open(t, newBoundary(), time.Time{})
	f2 := s2.Follow(nil, true)
	defer f2.Close()
	if err := f2.Run(ctx, func(session.Event) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
	f3 := s2.Follow(nil, false)
	defer f3.Close()
	if err := f3.Run(t.Context(), func(session.Event) error { return nil }); err != nil {
		t.Errorf("without following: %v", err)
	}
}
