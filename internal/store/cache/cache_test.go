package cache_test

import (
	"context"
	"errors"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandtree/sandtree/internal/store"
	"github.com/sandtree/sandtree/internal/store/cache"
	"github.com/sandtree/sandtree/internal/store/sqlite"
	"github.com/sandtree/sandtree/internal/store/storetest"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

func open(t *testing.T, dir string) store.Store {
	t.Helper()
	db, err := sqlite.Open(t.Context(), filepath.Join(dir, "node.db"))
	if err != nil {
		t.Fatal(err)
	}
	return cache.New(db)
}

func TestConformance(t *testing.T) { storetest.Run(t, open) }

// counting counts the reads that reach the store below, and calls during, if
// set, in the middle of one.
type counting struct {
	store.Store
	reads  atomic.Int64
	during func()
}

func (c *counting) Template(ctx context.Context, ref string) (store.Template, error) {
	c.reads.Add(1)
	return c.Store.Template(ctx, ref)
}

func (c *counting) Checkpoint(ctx context.Context, id string) (store.Checkpoint, error) {
	c.reads.Add(1)
	k, err := c.Store.Checkpoint(ctx, id)
	if f := c.during; f != nil {
		c.during = nil
		f()
	}
	return k, err
}

func (c *counting) Sessions(ctx context.Context, sandbox string) ([]store.Session, error) {
	c.reads.Add(1)
	return c.Store.Sessions(ctx, sandbox)
}

// filled is a cache over a store with one of each.
func filled(t *testing.T) (*cache.Store, *counting) {
	t.Helper()
	db, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "node.db"))
	if err != nil {
		t.Fatal(err)
	}
	below := &counting{Store: db}
	s := cache.New(below)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, err := range []error{
		s.AddTemplate(t.Context(), store.Template{ID: "tp", Name: "debian", Env: map[string]string{"A": "1"}}),
		s.AddSandbox(t.Context(), store.Sandbox{ID: "sb", Template: "tp"}),
		s.AddCheckpoint(t.Context(), store.Checkpoint{ID: "cp", Sandbox: "sb", Name: "base"}),
		s.AddSession(t.Context(), store.Session{ID: "se", Sandbox: "sb", Key: "se", Argv: []string{"sh"}, Started: time.Now()}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return s, below
}

func TestWhatWasReadIsNotReadAgain(t *testing.T) {
	s, below := filled(t)
	read := func() (tp store.Template, cp store.Checkpoint, se []store.Session) {
		t.Helper()
		var errs [3]error
		tp, errs[0] = s.Template(t.Context(), "debian")
		cp, errs[1] = s.Checkpoint(t.Context(), "cp")
		se, errs[2] = s.Sessions(t.Context(), "sb")
		for _, err := range errs {
			if err != nil {
				t.Fatal(err)
			}
		}
		return tp, cp, se
	}
	tp, cp, se := read()
	first := below.reads.Load()
	// What the reader does to his copy is his own affair.
	tp.Env["A"], se[0].Argv[0] = "2", "other"
	cp.Info, se[0].ExitCode, se[0].Ended = control.Checkpoint{ID: "cp", FrozenNS: 5}, 7, true
	if err := s.UpdateCheckpoint(t.Context(), cp); err != nil {
		t.Fatal(err)
	}
	se[0].Argv = []string{"sh"}
	if err := s.UpdateSession(t.Context(), se[0]); err != nil {
		t.Fatal(err)
	}
	tp, cp, se = read()
	if n := below.reads.Load(); n != first || first != 3 {
		t.Errorf("%d reads, then %d: want 3 and no more", first, n)
	}
	if tp.Env["A"] != "1" || cp.Info.FrozenNS != 5 || cp.Name != "base" || se[0].ExitCode != 7 || se[0].Argv[0] != "sh" {
		t.Errorf("after the updates: %v, %v, %v", tp, cp, se)
	}
}

// The race detector sees a reader and a writer of the same memory.
func TestReadersBesideWriters(t *testing.T) {
	s, _ := filled(t)
	var wg sync.WaitGroup
	for n := range 2 {
		wg.Go(func() {
			for i := range 50 {
				all, err := s.Sessions(t.Context(), "sb")
				if err != nil || len(all) != 1 {
					t.Errorf("%v, %v", all, err)
					return
				}
				c, err := s.Checkpoint(t.Context(), "cp")
				if err != nil {
					t.Error(err)
					return
				}
				if n == 0 {
					all[0].ExitCode = i
					c.Info.StageNS = map[string]int64{"stop": int64(i)}
					if err := errors.Join(s.UpdateSession(t.Context(), all[0]), s.UpdateCheckpoint(t.Context(), c)); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
}

func TestAWriteDuringAReadIsNotForgotten(t *testing.T) {
	s, below := filled(t)
	below.during = func() {
		if err := s.UpdateCheckpoint(t.Context(), store.Checkpoint{ID: "cp", Info: control.Checkpoint{ID: "cp", FrozenNS: 9}}); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.Checkpoint(t.Context(), "cp"); err != nil {
		t.Fatal(err)
	}
	c, err := s.Checkpoint(t.Context(), "cp")
	if err != nil || c.Info.FrozenNS != 9 {
		t.Errorf("%v, %v: the write that came during a read is not seen", c, err)
	}
}
