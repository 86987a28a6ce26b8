package lifecycle

import (
	"context"
	"strings"
	"time"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/node/session"
	"github.com/sandtree/sandtree/internal/store"
)

const (
	// DefaultReadyTimeout bounds the waiting for a start command of whose
	// template nothing else is said.
	DefaultReadyTimeout = time.Minute
	// settleTime is how long a start command runs until it counts as ready,
	// where nothing tells whether it is.
	settleTime = 2 * time.Second
	// readyPause is between two tries of the ready command, at first; it grows
	// up to mostReadyPause.
	readyPause     = 50 * time.Millisecond
	mostReadyPause = time.Second
)

// awaitReady waits until a template's start command is ready: until its ready
// command succeeds, or, without one, until it has ended with status 0 or has
// run for settleTime.
func (s *Sandboxes) awaitReady(ctx context.Context, b *sandbox, t store.Template, start *session.Session) error {
	if t.Ready == "" {
		if !waitEnd(ctx, start, settleTime) {
			return context.Cause(ctx)
		}
		return startFailed(ctx, start)
	}
	limit := t.ReadyTimeout
	if limit == 0 {
		limit = DefaultReadyTimeout
	}
	deadline := time.Now().Add(limit)
	for pause := readyPause; ; pause = min(2*pause, mostReadyPause) {
		if err := startFailed(ctx, start); err != nil {
			return err
		}
		try, release, err := s.shell(ctx, b, t, t.Ready, max(time.Until(deadline), time.Millisecond))
		if err != nil {
			return fault.New(fault.KindOf(err), "ready command: %w", err)
		}
		waitEnd(ctx, try, time.Until(deadline)+time.Minute) // it is killed at the deadline
		rec := try.Record()
		said := tail(ctx, try)
		release()
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case rec.Ended && rec.ExitCode == 0 && rec.Reason == "":
			return startFailed(ctx, start)
		case time.Now().Add(pause).After(deadline):
			return fault.New(fault.Deadline, "the start command was not ready within %s: the ready command ended with status %d%s%s",
				limit, rec.ExitCode, quote("its output", said), quote("the end of the start command's output", tail(ctx, start))).
				WithHint("try both commands in a sandbox of a template without them; --ready-timeout gives more time")
		}
		waitEnd(ctx, start, pause)
		if err := s.sessions.drop(ctx, rec); err != nil {
			s.log.Warn("the session of a ready command is kept", "session", rec.ID, "error", err)
		}
	}
}

// startFailed is the error of a start command that has failed.
func startFailed(ctx context.Context, start *session.Session) error {
	rec := start.Record()
	if !rec.Ended || rec.ExitCode == 0 && rec.Reason == "" {
		return nil
	}
	why := ""
	if rec.Reason != "" {
		why = " (" + rec.Reason + ")"
	}
	return fault.New(fault.Invalid, "the start command ended with status %d%s%s",
		rec.ExitCode, why, quote("the end of its output", tail(ctx, start))).
		WithHint("try it in a sandbox of a template without it: sandtree run --template TEMPLATE -it")
}

// waitEnd waits until a session has ended, at most for d. It returns false if
// ctx ended.
func waitEnd(ctx context.Context, se *session.Session, d time.Duration) bool {
	timeout := time.NewTimer(max(d, 0))
	defer timeout.Stop()
	for {
		changed := se.Changed()
		if se.Ended() {
			return true
		}
		select {
		case <-changed:
		case <-timeout.C:
			return true
		case <-ctx.Done():
			return false
		}
	}
}

// tailBytes is how much output an error shows.
const tailBytes = 2000

// tail is the end of what a session has printed, without what a terminal would
// take for commands.
func tail(ctx context.Context, se *session.Session) string {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	f := se.Follow(nil, se.Ended()) // of one that has ended, all that it printed
	defer f.Close()
	var out []byte
	_ = f.Run(ctx, func(e session.Event) error { // what has come until an error is shown
		if o, ok := e.(session.Output); ok {
			out = append(out, o.Data...)
			out = out[max(0, len(out)-tailBytes):]
		}
		return nil
	})
	text := strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return r
		}
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return -1
		}
		return r
	}, strings.ToValidUTF8(string(out), "?"))
	if len(out) == tailBytes {
		if _, rest, ok := strings.Cut(text, "\n"); ok {
			text = rest
		}
	}
	return strings.TrimSpace(text)
}

// quote shows output in an error's text.
func quote(what, text string) string {
	if text == "" {
		return ""
	}
	return "\n" + what + ":\n  " + strings.ReplaceAll(text, "\n", "\n  ")
}
