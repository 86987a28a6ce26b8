// Package sqlite is the store of a single node: one SQLite file.
//
// The file is in WAL mode with synchronous=NORMAL: a transaction survives the
// death of the process at once, and that of the machine from the next
// checkpoint of the WAL on (https://www.sqlite.org/wal.html). Neither a
// sandbox nor its session outlives the machine, so nothing more is needed.
package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"sync"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/store"
)

//go:embed migrations/*.sql
var migrations embed.FS

// DB is a store in one file.
type DB struct {
	db *sql.DB
	// What each command costs is prepared once.
	addSandbox, addSession, updateSession, updateSandbox *sql.Stmt

	mu         sync.Mutex
	statements map[string]*sql.Stmt // the others by their text, see prepared
}

var _ store.Store = (*DB)(nil)

// Open opens the store in a file, which is made if it is missing, and brings
// its schema up to date. A file of a newer schema is refused with
// fault.Unsupported.
func Open(ctx context.Context, path string) (*DB, error) {
	q := url.Values{"_pragma": {
		"journal_mode(WAL)", "synchronous(NORMAL)", "foreign_keys(1)", "busy_timeout(5000)",
	}, "_txlock": {"immediate"}}
	u := url.URL{Scheme: "file", Path: path, RawQuery: q.Encode()}
	db, err := sql.Open("sqlite", u.String())
	if err != nil {
		return nil, fmt.Errorf("open store %s: %w", path, classify(err))
	}
	// One connection: transactions are short, and SQLite has one writer anyway.
	db.SetMaxOpenConns(1)
	if err := migrate(ctx, db); err != nil {
		return nil, errors.Join(fmt.Errorf("open store %s: %w", path, err), db.Close())
	}
	if err := keepRoom(ctx, db); err != nil {
		return nil, errors.Join(fmt.Errorf("open store %s: %w", path, err), db.Close())
	}
	d := &DB{db: db, statements: map[string]*sql.Stmt{}}
	if err := d.prepare(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open store %s: %w", path, err), db.Close())
	}
	return d, nil
}

func (d *DB) prepare(ctx context.Context) (err error) {
	for _, p := range []struct {
		to    **sql.Stmt
		query string
	}{{&d.addSandbox, addSandbox}, {&d.addSession, addSession}, {&d.updateSession, updateSession}, {&d.updateSandbox, updateSandbox}} {
		if *p.to, err = d.db.PrepareContext(ctx, p.query); err != nil {
			return classify(err)
		}
	}
	return nil
}

// prepared returns a statement that is parsed when it is first used: parsing takes
// longer than most statements. There are as many as the code has. Within a transaction
// nothing may be prepared, since that has the one connection. The lock is not held
// while it waits for the connection: others know their statement, or have a ctx that ends.
func (d *DB) prepared(ctx context.Context, query string) (*sql.Stmt, error) {
	if s := d.known(query); s != nil {
		return s, nil
	}
	s, err := d.db.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	return d.keep(query, s)
}

// known returns a statement that was kept, or nil.
func (d *DB) known(query string) *sql.Stmt {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.statements[query]
}

// keep keeps a statement for who needs it next. Two may have prepared the same: the
// first is kept, and s closed.
func (d *DB) keep(query string, s *sql.Stmt) (*sql.Stmt, error) {
	d.mu.Lock()
	first := d.statements[query]
	if first == nil {
		d.statements[query] = s
	}
	d.mu.Unlock()
	if first == nil {
		return s, nil
	}
	return first, s.Close()
}

// Close closes the file.
func (d *DB) Close() error { return d.db.Close() }

// migrate applies the migrations that the file's user_version does not count
// yet, each in a transaction of its own.
func migrate(ctx context.Context, db *sql.DB) error {
	files, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		return err
	}
	var version int
	if err := db.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return classify(err)
	}
	if version > len(files) {
		return fault.New(fault.Unsupported, "its schema is version %d, this program knows %d", version, len(files)).
			WithHint("use the newer sandtree that wrote it")
	}
	for i := version; i < len(files); i++ {
		text, err := migrations.ReadFile(files[i])
		if err != nil {
			return err
		}
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return classify(err)
		}
		_, err = tx.ExecContext(ctx, string(text)+fmt.Sprintf("\nPRAGMA user_version = %d;", i+1))
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", files[i], classify(err)), tx.Rollback())
		}
		if err := tx.Commit(); err != nil {
			return fmt.Errorf("%s: %w", files[i], classify(err))
		}
	}
	return nil
}

// classify gives an error of SQLite its kind.
func classify(err error) error {
	var se *sqlite.Error
	if !errors.As(err, &se) {
		return err
	}
	switch se.Code() {
	case sqlite3.SQLITE_CONSTRAINT_UNIQUE, sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY:
		return fault.New(fault.Exists, "the name or id is taken")
	case sqlite3.SQLITE_FULL:
		return fault.New(fault.Exhausted, "the disk of the state directory is full: %w", err)
	}
	return err
}

func isForeignKey(err error) bool {
	var se *sqlite.Error
	return errors.As(err, &se) && se.Code() == sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY
}

// exec runs a statement that must change a row; what names the row.
func (d *DB) exec(ctx context.Context, what, query string, args ...any) error {
	s, err := d.prepared(ctx, query)
	if err != nil {
		return fmt.Errorf("%s: %w", what, classify(err))
	}
	r, err := s.ExecContext(ctx, args...)
	return changed(r, err, what)
}

// changed wants a statement to have changed a row.
func changed(r sql.Result, err error, what string) error {
	if err != nil {
		return fmt.Errorf("%s: %w", what, classify(err))
	}
	n, err := r.RowsAffected()
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if n == 0 {
		return fault.New(fault.NotFound, "%s does not exist", what)
	}
	return nil
}

// scanner is a row.
type scanner interface{ Scan(dest ...any) error }

// one reads one row; what names it.
func one[T any](ctx context.Context, d *DB, what string, scan func(scanner) (T, error), query string, args ...any) (v T, err error) {
	s, err := d.prepared(ctx, query)
	if err == nil {
		v, err = scan(s.QueryRowContext(ctx, args...))
	}
	if errors.Is(err, sql.ErrNoRows) {
		return v, fault.New(fault.NotFound, "%s does not exist", what)
	}
	if err != nil {
		return v, fmt.Errorf("%s: %w", what, classify(err))
	}
	return v, nil
}

// all reads all rows of a query.
func all[T any](ctx context.Context, d *DB, what string, scan func(scanner) (T, error), query string, args ...any) ([]T, error) {
	s, err := d.prepared(ctx, query)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", what, classify(err))
	}
	rows, err := s.QueryContext(ctx, args...)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", what, classify(err))
	}
	defer func() { _ = rows.Close() }()
	var vs []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", what, classify(err))
		}
		vs = append(vs, v)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("list %s: %w", what, classify(err))
	}
	return vs, nil
}

func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func fromNanos(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n).UTC()
}

// orNull keeps empty names out of UNIQUE.
func orNull(s string) any {
	if s == "" {
		return nil
	}
	return s
}
