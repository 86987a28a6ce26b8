package session

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/node/output"
	"github.com/sandtree/sandtree/internal/store"
)

// Tail is how much of a log a follower gets who does not say where to begin.
const Tail = 64 << 10

// chunk is how much a follower gets at once.
const chunk = 32 << 10

// Position is a place in a session's log: bytes since the session began.
type Position struct{ Stdout, Stderr uint64 }

// Event is something that a follower sees: an [Output], a [Rebirth] or an [End].
type Event interface{ event() }

// Output is a piece of output. Data is valid until the next event.
type Output struct {
	Stream     int // 0: stdout or a terminal, 1: stderr
	Generation uint64
	Offset     uint64
	Data       []byte
}

// Rebirth is a mark: the output behind it is of restored processes.
type Rebirth struct{ store.Mark }

// End is the last event: what the session is in the end, or, for one who does
// not follow, now.
type End struct{ Record store.Session }

func (Output) event()  {}
func (Rebirth) event() {}
func (End) event()     {}

// Follower reads a session's log. One goroutine uses it.
type Follower struct {
	s       *Session
	readers []*output.Reader
	ends    []uint64 // where to stop; nil: follow
	next    int      // the mark that comes next
	buf     []byte
}

// Follow makes a follower that begins at a position; nil means [Tail] before
// the end. From now on the session's command goes no further than
// output.Window ahead of it. One that is not to follow stops at what is the
// end now. The follower must be closed.
func (s *Session) Follow(from *Position, follow bool) *Follower {
	f := &Follower{s: s, buf: make([]byte, chunk)}
	for i, st := range s.out.Streams {
		end := st.End()
		at := end - min(end, Tail)
		if from != nil {
			at = [2]uint64{from.Stdout, from.Stderr}[i]
		}
		f.readers = append(f.readers, st.NewReader(at))
		if !follow {
			f.ends = append(f.ends, end)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.attached++
	for f.next < len(s.rec.Marks) && f.reached(s.rec.Marks[f.next]) {
		f.next++
	}
	return f
}

// Close ends the follower.
func (f *Follower) Close() {
	for _, r := range f.readers {
		r.Close()
	}
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	f.s.attached--
}

// Run reports events until the session has ended and all of its output was
// reported, emit fails, or ctx ends; then it returns ctx's error.
func (f *Follower) Run(ctx context.Context, emit func(Event) error) error {
	for {
		// Taken before looking, so that no change is missed.
		changes := f.s.streamChanges()
		settled := f.s.settled()
		// The ends before the marks: a mark is set before the output behind it
		// comes, so all marks of what is read in this round are known.
		ends := f.limits()
		f.s.mu.Lock()
		rec, closed := f.s.rec, f.s.closed
		f.s.mu.Unlock()

		moved, err := f.step(rec.Marks, ends, emit)
		switch {
		case errors.Is(err, fs.ErrClosed) && closed:
			moved = false // the log was let go of
		case err != nil:
			return err
		}
		switch {
		case moved:
			continue
		case f.ends != nil, rec.Ended && (settled || closed):
			return emit(End{rec})
		case closed:
			return fault.New(fault.Unavailable, "session %s: the daemon lets go of it", rec.ID).WithHint("attach again")
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		wait(ctx, changes)
	}
}

// limits returns how far each stream may be read now.
func (f *Follower) limits() (ends [2]uint64) {
	for i, st := range f.s.out.Streams {
		ends[i] = st.End()
		if f.ends != nil {
			ends[i] = min(ends[i], f.ends[i])
		}
	}
	return ends
}

// step reports what there is before ends, once per stream.
func (f *Follower) step(marks []store.Mark, ends [2]uint64, emit func(Event) error) (moved bool, err error) {
	var generation uint64
	if f.next > 0 {
		generation = marks[f.next-1].Generation
	}
	for i, r := range f.readers {
		limit := ends[i]
		if f.next < len(marks) { // up to the mark, no further
			limit = min(limit, offset(marks[f.next], i))
		}
		p := f.buf[:min(uint64(len(f.buf)), limit-min(r.Position(), limit))]
		n, at, err := r.Read(p)
		if err != nil {
			return moved, fmt.Errorf("read log of session %s: %w", f.s.rec.ID, err)
		}
		if n == 0 {
			continue
		}
		moved = true
		if err := emit(Output{Stream: i, Generation: generation, Offset: at, Data: p[:n]}); err != nil {
			return moved, err
		}
	}
	if f.next < len(marks) && f.reached(marks[f.next]) {
		f.next++
		return true, emit(Rebirth{marks[f.next-1]})
	}
	return moved, nil
}

// reached says whether all before a mark was read.
func (f *Follower) reached(m store.Mark) bool {
	for i, r := range f.readers {
		if r.Position() < offset(m, i) {
			return false
		}
	}
	return true
}

func offset(m store.Mark, stream int) uint64 {
	if stream == 0 {
		return m.Stdout
	}
	return m.Stderr
}
