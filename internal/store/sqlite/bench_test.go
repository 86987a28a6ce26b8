package sqlite_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/sandtree/sandtree/internal/store"
	"github.com/sandtree/sandtree/internal/store/sqlite"
)

// withSandbox opens a store that has sandbox s.
func withSandbox(b *testing.B) *sqlite.DB {
	b.Helper()
	db, err := sqlite.Open(b.Context(), filepath.Join(b.TempDir(), "node.db"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = db.Close() })
	if err := db.AddTemplate(b.Context(), store.Template{ID: "t", Name: "t"}); err != nil {
		b.Fatal(err)
	}
	if err := db.AddSandbox(b.Context(), store.Sandbox{ID: "s", Template: "t"}); err != nil {
		b.Fatal(err)
	}
	return db
}

// BenchmarkSession is what the store costs an exec: a record at its start and
// one at its end.
func BenchmarkSession(b *testing.B) {
	db, ctx := withSandbox(b), b.Context()
	for i := 0; b.Loop(); i++ {
		s := store.Session{ID: fmt.Sprint(i), Sandbox: "s", Key: fmt.Sprint(i), Argv: []string{"true"}, Started: time.Now()}
		if err := db.AddSession(ctx, s); err != nil {
			b.Fatal(err)
		}
		s.Ended = true
		if err := db.UpdateSession(ctx, s); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCheckpoint is what the store costs a checkpoint that is removed again.
func BenchmarkCheckpoint(b *testing.B) {
	db, ctx := withSandbox(b), b.Context()
	for i := 0; b.Loop(); i++ {
		c := store.Checkpoint{ID: fmt.Sprint(i), Sandbox: "s", Created: time.Now()}
		if err := db.AddCheckpoint(ctx, c); err != nil {
			b.Fatal(err)
		}
		c.Info.Processes = i
		if err := db.UpdateCheckpoint(ctx, c); err != nil {
			b.Fatal(err)
		}
		if _, err := db.Checkpoints(ctx, "s"); err != nil {
			b.Fatal(err)
		}
		if err := db.RemoveCheckpoint(ctx, c.ID); err != nil {
			b.Fatal(err)
		}
	}
}
