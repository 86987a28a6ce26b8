package sqlite

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/store"
)

const sessionColumns = "id, sandbox, key, argv, tty, pid, started, deadline, generation, ended, ended_at, exit_code, reason, marks"

func scanSession(row scanner) (s store.Session, err error) {
	var generation int64
	err = row.Scan(&s.ID, &s.Sandbox, &s.Key, asJSON(&s.Argv), &s.TTY, &s.PID, timeColumn{&s.Started},
		timeColumn{&s.Deadline}, &generation, &s.Ended, timeColumn{&s.EndedAt}, &s.ExitCode, &s.Reason, asJSON(&s.Marks))
	s.Generation = uint64(generation) //nolint:gosec // was written from a uint64
	return s, err
}

const addSession = "INSERT INTO sessions (" + sessionColumns + ") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"

// AddSession implements [store.Sessions].
func (d *DB) AddSession(ctx context.Context, s store.Session) error {
	return execAddSession(ctx, d.addSession, s)
}

func execAddSession(ctx context.Context, add *sql.Stmt, s store.Session) error {
	r, err := add.ExecContext(ctx,
		s.ID, s.Sandbox, s.Key, asJSON(&s.Argv), s.TTY, s.PID, nanos(s.Started), nanos(s.Deadline),
		int64(s.Generation), s.Ended, nanos(s.EndedAt), s.ExitCode, s.Reason, asJSON(&s.Marks)) //nolint:gosec // a count
	if isForeignKey(err) {
		return fault.New(fault.NotFound, "sandbox %q does not exist", s.Sandbox)
	}
	return changed(r, err, fmt.Sprintf("session %q", s.ID))
}

// Session implements [store.Sessions].
func (d *DB) Session(ctx context.Context, id string) (store.Session, error) {
	return one(ctx, d, fmt.Sprintf("session %q", id), scanSession,
		"SELECT "+sessionColumns+" FROM sessions WHERE id = ?", id)
}

// Sessions implements [store.Sessions].
func (d *DB) Sessions(ctx context.Context, sandbox string) ([]store.Session, error) {
	return all(ctx, d, "sessions", scanSession,
		"SELECT "+sessionColumns+" FROM sessions WHERE ?1 = '' OR sandbox = ?1 ORDER BY started, id", sandbox)
}

const updateSession = `UPDATE sessions SET pid = ?, started = ?, deadline = ?, generation = ?, ended = ?, ended_at = ?,
	exit_code = ?, reason = ?, marks = ? WHERE id = ?`

// UpdateSession implements [store.Sessions].
func (d *DB) UpdateSession(ctx context.Context, s store.Session) error {
	return execUpdateSession(ctx, d.updateSession, s)
}

func execUpdateSession(ctx context.Context, update *sql.Stmt, s store.Session) error {
	r, err := update.ExecContext(ctx,
		s.PID, nanos(s.Started), nanos(s.Deadline), int64(s.Generation), s.Ended, nanos(s.EndedAt), s.ExitCode, //nolint:gosec // a count
		s.Reason, asJSON(&s.Marks), s.ID)
	return changed(r, err, fmt.Sprintf("session %q", s.ID))
}

// RemoveSession implements [store.Sessions].
func (d *DB) RemoveSession(ctx context.Context, id string) error {
	return d.exec(ctx, fmt.Sprintf("session %q", id), "DELETE FROM sessions WHERE id = ?", id)
}
