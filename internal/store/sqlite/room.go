package sqlite

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/sandtree/sandtree/internal/fault"
)

// room is what the file and its WAL hold allocated beyond their content, in
// bytes: some hundred transactions more than it takes to checkpoint the WAL
// (1000 pages of 4 KiB, https://www.sqlite.org/wal.html#ckpt).
const room = 8 << 20

// keepRoom makes sure that changes are possible while the disk is full, or
// nothing could be removed to make room on it. What a transaction allocates and
// the next one frees stays allocated: in the file as free pages, and in the WAL,
// which begins anew at its start and keeps its length. On a disk that is full
// by now nothing is kept.
func keepRoom(ctx context.Context, db *sql.DB) error {
	for _, statement := range []string{
		"CREATE TABLE IF NOT EXISTS room (bytes BLOB)",
		fmt.Sprintf("INSERT INTO room VALUES (zeroblob(%d))", room),
		"DELETE FROM room",
		"PRAGMA wal_checkpoint(RESTART)",
	} {
		_, err := db.ExecContext(ctx, statement)
		if err = classify(err); fault.Is(err, fault.Exhausted) {
			return nil
		} else if err != nil {
			return fmt.Errorf("keep room: %w", err)
		}
	}
	return nil
}
