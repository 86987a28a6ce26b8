package sqlite

import (
	"context"
	"database/sql"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// Who waits for the connection to prepare a statement does not hold up those whose
// statement is known, and two who prepare the same get the same.
func TestPreparingHoldsUpNobody(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	d, err := Open(ctx, filepath.Join(t.TempDir(), "node.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}()
	known, err := d.prepared(ctx, "SELECT 1")
	if err != nil {
		t.Fatal(err)
	}
	tx, err := d.db.BeginTx(ctx, nil) // it has the one connection
	if err != nil {
		t.Fatal(err)
	}
	before := d.db.Stats().WaitCount
	const many = 2
	prepared := make(chan *sql.Stmt, many)
	for range many {
		go func() {
			s, err := d.prepared(ctx, "SELECT 2")
			if err != nil {
				t.Error(err)
			}
			prepared <- s
		}()
	}
	for d.db.Stats().WaitCount < before+many {
		if ctx.Err() != nil {
			t.Fatal("they do not wait for the connection at the same time")
		}
		runtime.Gosched()
	}
	if s, err := d.prepared(ctx, "SELECT 1"); err != nil || s != known {
		t.Errorf("a known statement: %v", err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	first, second := <-prepared, <-prepared
	if first != second {
		t.Error("a statement is kept twice")
	}
	var n int
	if err := first.QueryRowContext(ctx).Scan(&n); err != nil || n != 2 {
		t.Errorf("the statement that is kept: %d, %v", n, err)
	}
}
