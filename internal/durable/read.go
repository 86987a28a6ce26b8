package durable

import (
	"fmt"
	"io"
)

// readBounded reads all that there is, if it is not longer than limit.
func readBounded(r io.Reader, limit int64) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("%w: it has more than %d bytes", errCorrupt, limit)
	}
	return b, err
}
