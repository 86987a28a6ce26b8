package client

import (
	"context"
	"errors"
	"io"
)

// chunkSize is how much one message carries, in bytes.
const chunkSize = 128 << 10

// sendChunks sends all of r. The transport has serialised a chunk when send
// returns, so the buffer is used again. An error of send that is io.EOF means
// that the daemon has answered already; what it said is read elsewhere.
func sendChunks(ctx context.Context, r io.Reader, send func([]byte) error) error {
	in := newCancelReader(ctx, r)
	buf := make([]byte, chunkSize)
	for {
		n, err := in.Read(buf)
		if n > 0 {
			if serr := send(buf[:n]); serr != nil {
				if errors.Is(serr, io.EOF) {
					return io.EOF
				}
				return wrap(serr)
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && ctx.Err() != nil:
			return wrap(err)
		case err != nil:
			return &Error{Kind: Invalid, Message: "read what is sent: " + err.Error(), Err: err}
		}
	}
}

// cancelReader reads what another reader yields, until its context ends: also while
// the other blocks, as a terminal or a pipe does. What that yields later is lost.
type cancelReader struct {
	ctx context.Context
	r   io.Reader
	buf []byte // the other's: it may still be filled when Read has returned
	got chan result
}

type result struct {
	n   int
	err error
}

func newCancelReader(ctx context.Context, r io.Reader) *cancelReader {
	return &cancelReader{ctx: ctx, r: r, buf: make([]byte, chunkSize), got: make(chan result, 1)}
}

// Read is not called again when the context has ended.
func (c *cancelReader) Read(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, c.ctx.Err()
	}
	into := c.buf[:min(len(p), len(c.buf))]
	go func() {
		n, err := c.r.Read(into)
		c.got <- result{n, err}
	}()
	select {
	case g := <-c.got:
		return copy(p, into[:g.n]), g.err
	case <-c.ctx.Done():
		return 0, c.ctx.Err()
	}
}
