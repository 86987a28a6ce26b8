package sqlite

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/store"
)

const sandboxColumns = "id, name, template, hostname, env, resources, state, lost_reason, created, generation, at, forked_from, start_session, golden, reason"

func scanSandbox(row scanner) (s store.Sandbox, err error) {
	var generation int64
	err = row.Scan(&s.ID, nameColumn{&s.Name}, &s.Template, &s.Hostname, asJSON(&s.Env), asJSON(&s.Resources), &s.State,
		&s.LostReason, timeColumn{&s.Created}, &generation, &s.At, &s.ForkedFrom, &s.StartSession, &s.Golden, &s.Reason)
	s.Generation = uint64(generation) //nolint:gosec // was written from a uint64
	return s, err
}

const addSandbox = "INSERT INTO sandboxes (" + sandboxColumns + ") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"

// AddSandbox implements [store.Sandboxes].
func (d *DB) AddSandbox(ctx context.Context, s store.Sandbox) error {
	return execAddSandbox(ctx, d.addSandbox, s)
}

// AddSandboxes implements [store.Sandboxes].
func (d *DB) AddSandboxes(ctx context.Context, all []store.Sandbox) error {
	if len(all) == 1 {
		return d.AddSandbox(ctx, all[0])
	}
	return d.together(ctx, func(tx *sql.Tx) error {
		add := tx.StmtContext(ctx, d.addSandbox)
		for _, s := range all {
			if err := execAddSandbox(ctx, add, s); err != nil {
				return err
			}
		}
		return nil
	})
}

func execAddSandbox(ctx context.Context, add *sql.Stmt, s store.Sandbox) error {
	what := s.ID
	if s.Name != "" {
		what = s.Name
	}
	r, err := add.ExecContext(ctx,
		s.ID, orNull(s.Name), s.Template, s.Hostname, asJSON(&s.Env), asJSON(&s.Resources), s.State,
		s.LostReason, nanos(s.Created), int64(s.Generation), s.At, s.ForkedFrom, s.StartSession, s.Golden, s.Reason) //nolint:gosec // a count
	if isForeignKey(err) {
		return fault.New(fault.NotFound, "template %q does not exist", s.Template)
	}
	return changed(r, err, fmt.Sprintf("sandbox %q", what))
}

// Sandbox implements [store.Sandboxes].
func (d *DB) Sandbox(ctx context.Context, ref string) (store.Sandbox, error) {
	return one(ctx, d, fmt.Sprintf("sandbox %q", ref), scanSandbox,
		"SELECT "+sandboxColumns+" FROM sandboxes WHERE id = ?1 OR name = ?1 ORDER BY id = ?1 DESC LIMIT 1", ref)
}

// Sandboxes implements [store.Sandboxes].
func (d *DB) Sandboxes(ctx context.Context) ([]store.Sandbox, error) {
	return all(ctx, d, "sandboxes", scanSandbox, "SELECT "+sandboxColumns+" FROM sandboxes ORDER BY created, id")
}

const updateSandbox = `UPDATE sandboxes SET name = ?, hostname = ?, env = ?, resources = ?, state = ?, lost_reason = ?,
	generation = ?, at = ?, forked_from = ?, start_session = ?, reason = ? WHERE id = ?`

// UpdateSandbox implements [store.Sandboxes].
func (d *DB) UpdateSandbox(ctx context.Context, s store.Sandbox) error {
	return execUpdateSandbox(ctx, d.updateSandbox, s)
}

func execUpdateSandbox(ctx context.Context, update *sql.Stmt, s store.Sandbox) error {
	r, err := update.ExecContext(ctx,
		orNull(s.Name), s.Hostname, asJSON(&s.Env), asJSON(&s.Resources), s.State, s.LostReason, int64(s.Generation), //nolint:gosec // a count
		s.At, s.ForkedFrom, s.StartSession, s.Reason, s.ID)
	return changed(r, err, fmt.Sprintf("sandbox %q", s.ID))
}

// UpdateBody implements [store.Sandboxes].
func (d *DB) UpdateBody(ctx context.Context, s store.Sandbox, sessions []store.Session) error {
	return d.together(ctx, func(tx *sql.Tx) error {
		if err := execUpdateSandbox(ctx, tx.StmtContext(ctx, d.updateSandbox), s); err != nil {
			return err
		}
		update := tx.StmtContext(ctx, d.updateSession)
		for _, x := range sessions {
			if err := execUpdateSession(ctx, update, x); err != nil && !fault.Is(err, fault.NotFound) {
				return err
			}
		}
		return nil
	})
}

// UpdateSandboxes implements [store.Sandboxes].
func (d *DB) UpdateSandboxes(ctx context.Context, all []store.Sandbox, added []store.Session) error {
	return d.together(ctx, func(tx *sql.Tx) error {
		update := tx.StmtContext(ctx, d.updateSandbox)
		for _, s := range all {
			if err := execUpdateSandbox(ctx, update, s); err != nil {
				return err
			}
		}
		add := tx.StmtContext(ctx, d.addSession)
		for _, x := range added {
			if err := execAddSession(ctx, add, x); err != nil {
				return err
			}
		}
		return nil
	})
}

// together does several things in one transaction.
func (d *DB) together(ctx context.Context, do func(*sql.Tx) error) error {
	tx, err := d.db.BeginTx(ctx, nil)
	if err != nil {
		return classify(err)
	}
	defer func() { _ = tx.Rollback() }() // of what was not committed
	if err := do(tx); err != nil {
		return err
	}
	return classify(tx.Commit())
}

// RemoveSandbox implements [store.Sandboxes].
func (d *DB) RemoveSandbox(ctx context.Context, id string) error {
	return d.exec(ctx, fmt.Sprintf("sandbox %q", id), "DELETE FROM sandboxes WHERE id = ?", id)
}
