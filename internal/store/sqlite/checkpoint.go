package sqlite

import (
	"context"
	"fmt"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/store"
)

const checkpointColumns = "id, sandbox, name, created, info"

func scanCheckpoint(row scanner) (c store.Checkpoint, err error) {
	err = row.Scan(&c.ID, &c.Sandbox, nameColumn{&c.Name}, timeColumn{&c.Created}, asJSON(&c.Info))
	return c, err
}

// AddCheckpoint implements [store.Checkpoints].
func (d *DB) AddCheckpoint(ctx context.Context, c store.Checkpoint) error {
	what := c.ID
	if c.Name != "" {
		what = c.Name
	}
	err := d.exec(ctx, fmt.Sprintf("checkpoint %q", what),
		"INSERT INTO checkpoints ("+checkpointColumns+") VALUES (?, ?, ?, ?, ?)",
		c.ID, c.Sandbox, orNull(c.Name), nanos(c.Created), asJSON(&c.Info))
	if isForeignKey(err) {
		return fault.New(fault.NotFound, "sandbox %q does not exist", c.Sandbox)
	}
	return err
}

// UpdateCheckpoint implements [store.Checkpoints].
func (d *DB) UpdateCheckpoint(ctx context.Context, c store.Checkpoint) error {
	return d.exec(ctx, fmt.Sprintf("checkpoint %q", c.ID), "UPDATE checkpoints SET info = ? WHERE id = ?", asJSON(&c.Info), c.ID)
}

// Checkpoint implements [store.Checkpoints].
func (d *DB) Checkpoint(ctx context.Context, id string) (store.Checkpoint, error) {
	return one(ctx, d, fmt.Sprintf("checkpoint %q", id), scanCheckpoint,
		"SELECT "+checkpointColumns+" FROM checkpoints WHERE id = ?", id)
}

// CheckpointsNamed implements [store.Checkpoints].
func (d *DB) CheckpointsNamed(ctx context.Context, sandbox, name string) ([]store.Checkpoint, error) {
	return all(ctx, d, "checkpoints", scanCheckpoint,
		"SELECT "+checkpointColumns+" FROM checkpoints WHERE name = ?1 AND (?2 = '' OR sandbox = ?2) ORDER BY created, id", name, sandbox)
}

// Checkpoints implements [store.Checkpoints].
func (d *DB) Checkpoints(ctx context.Context, sandbox string) ([]store.Checkpoint, error) {
	return all(ctx, d, "checkpoints", scanCheckpoint,
		"SELECT "+checkpointColumns+" FROM checkpoints WHERE sandbox = ? ORDER BY created, id", sandbox)
}

// RemoveCheckpoint implements [store.Checkpoints].
func (d *DB) RemoveCheckpoint(ctx context.Context, id string) error {
	return d.exec(ctx, fmt.Sprintf("checkpoint %q", id), "DELETE FROM checkpoints WHERE id = ?", id)
}
