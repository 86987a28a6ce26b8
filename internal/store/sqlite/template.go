package sqlite

import (
	"context"
	"fmt"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/store"
)

const templateColumns = "id, name, image_id, image, layers, start, env, user, dir, resources, setuid, created, ready, ready_timeout, reseed"

func scanTemplate(row scanner) (t store.Template, err error) {
	err = row.Scan(&t.ID, &t.Name, &t.ImageID, &t.Image, asJSON(&t.Layers), &t.Start, asJSON(&t.Env), &t.User, &t.Dir,
		asJSON(&t.Resources), &t.Setuid, timeColumn{&t.Created}, &t.Ready, &t.ReadyTimeout, &t.Reseed)
	return t, err
}

// AddTemplate implements [store.Templates].
func (d *DB) AddTemplate(ctx context.Context, t store.Template) error {
	return d.exec(ctx, fmt.Sprintf("template %q", t.Name),
		"INSERT INTO templates ("+templateColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		t.ID, t.Name, t.ImageID, t.Image, asJSON(&t.Layers), t.Start, asJSON(&t.Env), t.User, t.Dir,
		asJSON(&t.Resources), t.Setuid, nanos(t.Created), t.Ready, int64(t.ReadyTimeout), t.Reseed)
}

// Template implements [store.Templates].
func (d *DB) Template(ctx context.Context, ref string) (store.Template, error) {
	return one(ctx, d, fmt.Sprintf("template %q", ref), scanTemplate,
		"SELECT "+templateColumns+" FROM templates WHERE id = ?1 OR name = ?1 ORDER BY id = ?1 DESC LIMIT 1", ref)
}

// Templates implements [store.Templates].
func (d *DB) Templates(ctx context.Context) ([]store.Template, error) {
	return all(ctx, d, "templates", scanTemplate, "SELECT "+templateColumns+" FROM templates ORDER BY name")
}

// RemoveTemplate implements [store.Templates].
func (d *DB) RemoveTemplate(ctx context.Context, id string) error {
	what := fmt.Sprintf("template %q", id)
	err := d.exec(ctx, what, "DELETE FROM templates WHERE id = ?", id)
	if isForeignKey(err) {
		return fault.New(fault.Conflict, "%s is used by sandboxes", what)
	}
	return err
}
