package output

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Log is what one session printed: two streams, or one for a terminal.
type Log struct {
	// Streams are stdout and stderr, or a terminal's output alone.
	Streams []*Stream
}

// Open opens a session's log in a directory. Files, and the directory, are
// made when there is something to log.
func Open(dir, session string, terminal bool, log *slog.Logger) (*Log, error) {
	l := &Log{}
	for _, p := range paths(dir, session, terminal) {
		s, err := open(p, terminal, log)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("session %s: %w", session, err), l.Close())
		}
		l.Streams = append(l.Streams, s)
	}
	return l, nil
}

// Remove deletes a session's log.
func Remove(dir, session string) error {
	var errs []error
	for _, p := range append(paths(dir, session, true), paths(dir, session, false)...) {
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Size returns the room on disk that a session's log takes, in bytes.
func Size(dir, session string) int64 {
	var n int64
	for _, p := range append(paths(dir, session, true), paths(dir, session, false)...) {
		var st unix.Stat_t
		if unix.Stat(p, &st) == nil {
			n += st.Blocks * 512
		}
	}
	return n
}

func paths(dir, session string, terminal bool) []string {
	if terminal {
		return []string{filepath.Join(dir, session+".tty")}
	}
	return []string{filepath.Join(dir, session+".out"), filepath.Join(dir, session+".err")}
}

// FillTerminal fills the log from a terminal's master. The guard is a pipe, open
// for reading and writing by an open file description of this process's own. Its
// lock (flock(2)) says who may read from the terminal, and it holds what was read
// and is not in the log yet, also from an earlier process that was killed. Both
// stay the caller's.
func (l *Log) FillTerminal(master, guard *os.File) error { return l.Streams[0].fillFrom(master, guard) }

// Fill fills the streams from descriptors, in their order, which stay the
// caller's. See [Stream.Fill].
func (l *Log) Fill(files []*os.File) error {
	if len(files) != len(l.Streams) {
		return fmt.Errorf("fill log: %d descriptors for %d streams", len(files), len(l.Streams))
	}
	for i, f := range files {
		if err := l.Streams[i].Fill(f); err != nil {
			return err
		}
	}
	return nil
}

// Stop stops all filling; see [Stream.Stop].
func (l *Log) Stop() {
	for _, s := range l.Streams {
		s.Stop()
	}
}

// Settle asks all streams to settle; see [Stream.Settle].
func (l *Log) Settle() {
	for _, s := range l.Streams {
		s.Settle()
	}
}

// Settled reports that all streams are settled.
func (l *Log) Settled() bool {
	for _, s := range l.Streams {
		if !s.Settled() {
			return false
		}
	}
	return true
}

// Ends returns the ends of stdout and stderr; a terminal has no stderr.
func (l *Log) Ends() (stdout, stderr uint64) {
	stdout = l.Streams[0].End()
	if len(l.Streams) > 1 {
		stderr = l.Streams[1].End()
	}
	return stdout, stderr
}

// Close stops all filling and closes the files.
func (l *Log) Close() error {
	var errs []error
	for _, s := range l.Streams {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}
