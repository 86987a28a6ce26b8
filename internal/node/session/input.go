package session

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/node/output"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// endOfFile is what a terminal takes for the end of its input (VEOF).
const endOfFile = 4

// input is the way to a command's standard input.
type input struct {
	turn chan struct{} // holds one token: who has it writes

	mu   sync.Mutex
	file *os.File // nil: closed
}

func (in *input) init() { in.turn = make(chan struct{}, 1) }

// set makes a duplicate of the descriptor the input's; the old one is closed.
func (in *input) set(f *os.File) error {
	dup, err := output.Duplicate(f)
	if err != nil {
		return err
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.file != nil {
		_ = in.file.Close()
	}
	in.file = dup
	return nil
}

// close closes the descriptor; a write that waits ends.
func (in *input) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.file != nil {
		_ = in.file.Close()
		in.file = nil
	}
}

// write writes all of p, as the command takes it, or until ctx ends. Writers
// take turns, so nobody's bytes are mixed. What a command does not want any
// more is dropped, as is what waits while the descriptor changes.
func (in *input) write(ctx context.Context, p []byte) error {
	select {
	case in.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-in.turn }()
	in.mu.Lock()
	f := in.file
	in.mu.Unlock()
	if f == nil {
		return nil
	}
	stop := context.AfterFunc(ctx, func() { _ = f.SetWriteDeadline(time.Unix(1, 0)) })
	_, err := f.Write(p)
	if !stop() {
		_ = f.SetWriteDeadline(time.Time{})
	}
	switch {
	case err == nil, errors.Is(err, unix.EPIPE), errors.Is(err, unix.EIO), errors.Is(err, fs.ErrClosed):
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return context.Cause(ctx)
	}
	return err
}

// writeNow writes what the command takes at once, if it is nobody else's turn.
func (in *input) writeNow(p []byte) (n int) {
	select {
	case in.turn <- struct{}{}:
	default:
		return 0
	}
	defer func() { <-in.turn }()
	in.mu.Lock()
	f := in.file
	in.mu.Unlock()
	if f == nil {
		return 0
	}
	conn, err := f.SyscallConn()
	if err != nil {
		return 0
	}
	_ = conn.Write(func(fd uintptr) bool {
		n, _ = unix.Write(int(fd), p) // who writes the rest meets the error
		return true
	})
	return max(n, 0)
}

// WriteNow writes to the command's standard input what can be written without
// waiting, and returns how much that was.
func (s *Session) WriteNow(p []byte) int {
	s.mu.Lock()
	asleep := s.asleep
	s.mu.Unlock()
	if asleep {
		return 0
	}
	return s.in.writeNow(p)
}

// WriteInput writes to the command's standard input, which may take as long as
// the command does not read. It is not an error if the command has ended or
// closed its input.
func (s *Session) WriteInput(ctx context.Context, p []byte) error {
	if err := s.wake(ctx); err != nil {
		return fault.New(fault.KindOf(err), "write input of session %s: %w", s.rec.ID, err)
	}
	if err := s.in.write(ctx, p); err != nil {
		return fault.New(kindOf(err), "write input of session %s: %w", s.rec.ID, err)
	}
	return nil
}

// CloseInput ends the command's standard input; on a terminal it types the
// end-of-file character.
func (s *Session) CloseInput(ctx context.Context) error {
	if s.rec.TTY {
		return s.WriteInput(ctx, []byte{endOfFile})
	}
	if s.mustRun("close input of") != nil {
		return nil
	}
	if err := s.wake(ctx); err != nil {
		return err
	}
	// Whoever still writes has his turn first.
	select {
	case s.in.turn <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-s.in.turn }()
	s.in.close()
	return s.sup.CloseStdin(ctx, control.SessionRequest{Sandbox: s.rec.Sandbox, Session: s.rec.Key})
}

func kindOf(err error) fault.Kind {
	switch {
	case errors.Is(err, context.Canceled):
		return fault.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		return fault.Deadline
	}
	return fault.KindOf(err)
}

func isNoSpace(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}
