package sqlite

import (
	"database/sql/driver"
	"encoding/json"
	"fmt"
	"time"
)

// jsonColumn is a value that its column keeps as JSON.
type jsonColumn[T any] struct{ v *T }

func asJSON[T any](v *T) jsonColumn[T] { return jsonColumn[T]{v} }

// Value implements [driver.Valuer].
func (c jsonColumn[T]) Value() (driver.Value, error) {
	b, err := json.Marshal(c.v)
	return string(b), err
}

// Scan implements sql.Scanner.
func (c jsonColumn[T]) Scan(src any) error {
	s, ok := src.(string)
	if !ok {
		return fmt.Errorf("a JSON column holds %T", src)
	}
	return json.Unmarshal([]byte(s), c.v)
}

// timeColumn is a time that its column keeps as nanoseconds.
type timeColumn struct{ t *time.Time }

// Scan implements sql.Scanner.
func (c timeColumn) Scan(src any) error {
	n, ok := src.(int64)
	if !ok {
		return fmt.Errorf("a time column holds %T", src)
	}
	*c.t = fromNanos(n)
	return nil
}

// nameColumn is a text that is NULL when empty.
type nameColumn struct{ s *string }

// Scan implements sql.Scanner.
func (c nameColumn) Scan(src any) error {
	switch v := src.(type) {
	case nil:
		*c.s = ""
	case string:
		*c.s = v
	default:
		return fmt.Errorf("a name column holds %T", src)
	}
	return nil
}
