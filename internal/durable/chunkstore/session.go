package chunkstore

import (
	"bufio"
	"context"
	"errors"
	"os"
	"runtime"
	"strconv"
	"sync"

	"github.com/sandtree/sandtree/internal/durable/chunk"
	"github.com/sandtree/sandtree/internal/durable/disk"
	"github.com/sandtree/sandtree/internal/durable/lease"
	"github.com/sandtree/sandtree/internal/durable/pack"
	"github.com/sandtree/sandtree/internal/failpoint"
	"github.com/sandtree/sandtree/internal/fault"
)

// packSize is the length at which a pack is finished and the next begun.
const packSize = 32 << 20

// The steps of a session that can be made to fail.
var (
	failBegun     = failpoint.New("durable.pack.begun")
	failFilled    = failpoint.New("durable.pack.filled")
	failSynced    = failpoint.New("durable.pack.synced")
	failPublished = failpoint.New("durable.pack.published")
	failNamed     = failpoint.New("durable.packs.named")
)

// Session adds chunks to a store. They count when [Session.Commit] has
// returned; before it nobody else sees them. Its methods may be called at the
// same time, but for Commit and Abort.
type Session struct {
	s      *Store
	l      *lease.Lease
	ctx    context.Context
	jobs   chan job
	coders sync.WaitGroup
	syncs  sync.WaitGroup

	mu      sync.Mutex
	pending map[chunk.ID]int // lengths of those that are not published
	own     map[chunk.ID]ownPlace
	cur     *unfinished
	done    []*unfinished
	files   int
	err     error // the first; the session is of no use any more
	stats   Stats
}

// Stats count what a session was given.
type Stats struct {
	Chunks int   // that were new
	Bytes  int64 // of the packs with them
}

// job is a chunk to be compressed.
type job struct {
	id chunk.ID
	b  *[]byte
}

// ownPlace is where a chunk of a session is after Flush.
type ownPlace struct {
	in *unfinished
	i  int
}

// unfinished is a pack in tmp.
type unfinished struct {
	f    *os.File
	buf  *bufio.Writer
	pack *pack.Writer
	name string // when finished
	size int64
	err  error // of its sync
}

// Begin begins a session of a lease's holder, who ends it with Commit or Abort.
func (s *Store) Begin(ctx context.Context, l *lease.Lease) (*Session, error) {
	// What is condemned by now must be known: it is not relied on.
	if err := s.Refresh(); err != nil {
		return nil, err
	}
	n := runtime.GOMAXPROCS(0)
	jobs := make(chan job, 2*n)
	w := &Session{s: s, l: l, ctx: ctx, jobs: jobs, pending: map[chunk.ID]int{}}
	for range n {
		w.coders.Go(func() { w.code(jobs) })
	}
	return w, nil
}

var raw = sync.Pool{New: func() any { b := make([]byte, 0, 128<<10); return &b }}

// Put adds a chunk, unless the store has it. b is the caller's again when it
// returns.
func (w *Session) Put(b []byte) (chunk.ID, error) {
	if len(b) == 0 || len(b) > chunk.Max {
		return chunk.ID{}, fault.New(fault.Internal, "a chunk of %d bytes", len(b))
	}
	id := chunk.Sum(b)
	return id, w.put(id, b)
}

func (w *Session) put(id chunk.ID, b []byte) error {
	if !w.claim(id, len(b)) {
		return w.failed()
	}
	c := raw.Get().(*[]byte)
	*c = append((*c)[:0], b...)
	select {
	case w.jobs <- job{id, c}:
		return w.failed()
	case <-w.ctx.Done():
		w.fail(fault.New(fault.Canceled, "%w", context.Cause(w.ctx)))
		return w.failed()
	}
}

// claim reports whether a chunk must be written, which is then the caller's
// work.
func (w *Session) claim(id chunk.ID, length int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.pending[id]; ok || w.err != nil || w.s.kept(id) {
		return false
	}
	w.pending[id] = length
	return true
}

func (w *Session) failed() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

func (w *Session) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = disk.Errorf("write chunks: %w", err)
	}
}

// Reuse relies on a chunk that a record has: it is written again if only a
// condemned pack has it.
func (w *Session) Reuse(id chunk.ID) error {
	w.mu.Lock()
	_, ok := w.pending[id]
	w.mu.Unlock()
	if ok || w.s.kept(id) {
		return nil
	}
	b, err := w.s.Append(nil, id)
	if err != nil {
		return err
	}
	if w.s.kept(id) { // it was just not known
		return nil
	}
	return w.put(id, b)
}

// Append reads a chunk that is in the store, or, after [Session.Flush], in the
// session.
func (w *Session) Append(dst []byte, id chunk.ID) ([]byte, error) {
	w.mu.Lock()
	p := w.own[id]
	w.mu.Unlock()
	if p.in == nil {
		return w.s.Append(dst, id)
	}
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	dst, err := pack.Read(p.in.f, p.in.pack.Entries()[p.i], dst, *buf)
	if err != nil {
		err = disk.Errorf("read chunk %s back: %w", id, err)
	}
	return dst, err
}

// code compresses chunks until there are no more.
func (w *Session) code(jobs <-chan job) {
	var buf []byte
	for j := range jobs {
		if w.failed() == nil {
			buf = chunk.Encode(buf[:0], *j.b)
			if err := w.store(j.id, buf, len(*j.b)); err != nil {
				w.fail(err)
			}
		}
		raw.Put(j.b)
	}
}

// store writes a chunk into the current pack.
func (w *Session) store(id chunk.ID, stored []byte, length int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cur == nil {
		u, err := w.begin()
		if err != nil {
			return err
		}
		w.cur = u
	}
	if err := w.cur.pack.Add(id, stored, length); err != nil {
		return err
	}
	w.stats.Chunks++
	if w.cur.pack.Size() >= packSize || w.cur.pack.Chunks() == pack.MaxChunks {
		return w.finish()
	}
	return nil
}

func (w *Session) begin() (*unfinished, error) {
	w.files++
	f, err := os.OpenFile(w.s.Temp(w.l, strconv.Itoa(w.files)), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	u := &unfinished{f: f, buf: bufio.NewWriterSize(f, 512<<10)}
	if u.pack, err = pack.NewWriter(u.buf); err == nil {
		err = failBegun.Hit()
	}
	if err != nil {
		u.discard()
		return nil, err
	}
	return u, nil
}

// finish writes the current pack's index and begins to sync it. The caller
// holds the lock.
func (w *Session) finish() error {
	u := w.cur
	w.cur = nil
	w.done = append(w.done, u)
	name, err := u.pack.Finish()
	if err == nil {
		err = u.buf.Flush()
	}
	if err == nil {
		err = failFilled.Hit()
	}
	if err != nil {
		return err
	}
	u.name, u.size, u.buf = name, u.pack.Size(), nil
	w.stats.Bytes += u.size
	w.syncs.Go(func() { u.err = u.f.Sync() })
	return nil
}

func (u *unfinished) discard() {
	_ = u.f.Close()
	_ = os.Remove(u.f.Name())
}

// Flush waits until all chunks are in packs in tmp and synced. Nobody else sees
// them yet. No chunk is put afterwards.
func (w *Session) Flush() error {
	close(w.jobs)
	w.jobs = nil
	w.coders.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil && w.cur != nil {
		w.err = w.finish()
	}
	w.syncs.Wait()
	for _, u := range w.done {
		w.err = errors.Join(w.err, u.err)
	}
	if w.err == nil {
		w.err = failSynced.Hit()
	}
	if w.err != nil {
		w.err = disk.Errorf("write chunks: %w", w.err)
		return w.err
	}
	w.own = make(map[chunk.ID]ownPlace, len(w.pending))
	for _, u := range w.done {
		for i, e := range u.pack.Entries() {
			w.own[e.ID] = ownPlace{u, i}
		}
	}
	return nil
}

// Commit publishes all chunks. It ends the session, also by an error.
func (w *Session) Commit() (Stats, error) {
	err := w.commit()
	if err != nil {
		w.Abort()
		return Stats{}, disk.Errorf("publish chunks: %w", err)
	}
	return w.stats, nil
}

func (w *Session) commit() error {
	if w.jobs != nil {
		if err := w.Flush(); err != nil {
			return err
		}
	}
	if err := w.failed(); err != nil {
		return err
	}
	if len(w.done) == 0 {
		return nil
	}
	for _, u := range w.done {
		// One of the same name has the same chunks, and may be about to go.
		if err := os.Rename(u.f.Name(), w.s.path(packsDir, u.name)); err != nil {
			return err
		}
		if err := failPublished.Hit(); err != nil {
			return err
		}
	}
	if err := disk.SyncDir(w.s.path(packsDir)); err != nil {
		return err
	}
	if err := failNamed.Hit(); err != nil {
		return err
	}
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	for _, u := range w.done {
		_ = u.f.Close()
		p := &packFile{name: u.name, dir: packsDir, size: u.size, entries: u.pack.Entries()}
		old := w.s.packs[u.name]
		w.s.packs[u.name] = p
		if old != nil { // it had the same chunks
			_ = w.s.closePack(old)
			w.s.rebuild()
			continue
		}
		w.s.add(p)
	}
	w.done, w.own = nil, nil
	return nil
}

// Abort drops the session. After Commit it does nothing.
func (w *Session) Abort() {
	if w.jobs != nil {
		w.fail(context.Canceled)
		close(w.jobs)
		w.jobs = nil
		w.coders.Wait()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.syncs.Wait()
	if w.cur != nil {
		w.cur.discard()
	}
	for _, u := range w.done {
		u.discard()
	}
	w.cur, w.done, w.own = nil, nil, nil
}

// move puts a chunk that the store has already into a pack of the session.
func (w *Session) move(id chunk.ID, b []byte) error {
	w.mu.Lock()
	w.pending[id] = len(b)
	w.mu.Unlock()
	c := raw.Get().(*[]byte)
	*c = append((*c)[:0], b...)
	select {
	case w.jobs <- job{id, c}:
		return w.failed()
	case <-w.ctx.Done():
		return fault.New(fault.Canceled, "%w", context.Cause(w.ctx))
	}
}
