package chunkstore

import (
	"context"
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/durable/chunk"
	"github.com/sandtree/sandtree/internal/durable/disk"
	"github.com/sandtree/sandtree/internal/durable/lease"
	"github.com/sandtree/sandtree/internal/durable/pack"
	"github.com/sandtree/sandtree/internal/failpoint"
	"github.com/sandtree/sandtree/internal/fault"
)

// The steps of a collection that can be made to fail.
var (
	failMarked    = failpoint.New("durable.collect.marked")
	failReturned  = failpoint.New("durable.collect.returned")
	failDeleted   = failpoint.New("durable.collect.deleted")
	failRound     = failpoint.New("durable.collect.round")
	failCondemned = failpoint.New("durable.collect.condemned")
	failRepacked  = failpoint.New("durable.collect.repacked")
	failHeld      = failpoint.New("durable.collect.held")
)

const (
	heldFile    = "held"
	collectLock = "collect.lock"

	// A pack of which less than this part is live is written anew.
	leastLive = 0.6
	// So are small packs, when there are many.
	smallPack = 4 << 20
	manySmall = 16
)

// Live is the set of chunks that records need.
type Live map[chunk.ID]struct{}

// Collected says what a collection did.
type Collected struct {
	Removed, Repacked int   // packs
	Bytes             int64 // by which the store became smaller
	Held              int64 // that is condemned, and waits for leases
}

// Collect deletes what no record needs. mark adds the chunks that records need
// to the set, of all records that there are when it is called; it is called
// twice at most, with the same set. Another collection under way is a Conflict.
func (s *Store) Collect(ctx context.Context, mark func(context.Context, Live) error) (Collected, error) {
	unlock, err := s.lockCollect()
	if err != nil {
		return Collected{}, err
	}
	defer unlock()
	c := &collection{ctx: ctx, s: s, live: Live{}, mark: mark}
	if err := s.Refresh(); err != nil {
		return Collected{}, err
	}
	before, _ := s.Size()
	if err := c.run(); err != nil {
		return Collected{}, disk.Errorf("collect chunks: %w", err)
	}
	after, held := s.Size()
	c.out.Bytes, c.out.Held = before-after, held
	return c.out, nil
}

func (s *Store) lockCollect() (unlock func(), err error) {
	f, err := os.OpenFile(s.path(collectLock), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, disk.Errorf("collect chunks: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fault.New(fault.Conflict, "chunks are being collected already")
		}
		return nil, disk.Errorf("collect chunks: %w", err)
	}
	return func() { f.Close() }, nil
}

type collection struct {
	ctx  context.Context
	s    *Store
	live Live
	mark func(context.Context, Live) error
	out  Collected
}

func (c *collection) run() error {
	if err := c.s.clean(); err != nil {
		return err
	}
	// Which rounds are over must be known before records are looked at: who
	// held a lease may have published one as its last act.
	over, err := c.overRounds()
	if err != nil {
		return err
	}
	if err := c.mark(c.ctx, c.live); err != nil {
		return err
	}
	if err := failMarked.Hit(); err != nil {
		return err
	}
	if err := c.s.Refresh(); err != nil {
		return err
	}
	for _, r := range over {
		if err := c.end(r); err != nil {
			return err
		}
	}
	if err := c.s.Refresh(); err != nil {
		return err
	}
	dead, repack := c.choose()
	// What is dead goes first, so that there is room on a full disk.
	if err := c.condemn(dead); err != nil {
		return err
	}
	c.out.Removed += len(dead)
	for len(repack) > 0 {
		n := batch(repack)
		if err := c.repack(repack[:n]); err != nil {
			return err
		}
		repack = repack[n:]
	}
	return nil
}

// batch is how many packs are written anew at a time, so that the room that it
// takes for a while is bounded.
func batch(packs []*packFile) int {
	var sum int64
	for i, p := range packs {
		if sum += p.size; sum > 2*packSize {
			return max(i, 1)
		}
	}
	return len(packs)
}

// clean deletes unfinished files whose writers are gone.
func (s *Store) clean() error {
	entries, err := os.ReadDir(s.path(tmpDir)) // before the leases: each file is younger than its lease
	if err != nil {
		return err
	}
	alive, err := lease.Alive(s.path(leasesDir))
	if err != nil {
		return err
	}
	for _, e := range entries {
		if holder, _, _ := strings.Cut(e.Name(), "."); alive[holder] {
			continue
		}
		if err := os.Remove(s.path(tmpDir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// overRounds lists the rounds whose noted leases are all gone. One that was cut
// short before they were noted is noted now.
func (c *collection) overRounds() ([]string, error) {
	rounds, err := c.s.rounds()
	if err != nil {
		return nil, err
	}
	var over []string
	for _, r := range rounds {
		text, err := os.ReadFile(c.s.path(condemnedDir, r, heldFile))
		if errors.Is(err, fs.ErrNotExist) {
			text, err = c.note(r)
		}
		if err != nil {
			return nil, err
		}
		alive, err := lease.Alive(c.s.path(leasesDir))
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(strings.Fields(string(text)), func(l string) bool { return alive[l] }) {
			over = append(over, r)
		}
	}
	return over, nil
}

// note writes down which leases are held after a round's packs were condemned.
func (c *collection) note(round string) ([]byte, error) {
	alive, err := lease.Alive(c.s.path(leasesDir))
	if err != nil {
		return nil, err
	}
	var text []byte
	for name := range alive {
		text = append(append(text, name...), '\n')
	}
	tmp := c.s.path(condemnedDir, round, "."+heldFile)
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return text, disk.WriteFile(tmp, c.s.path(condemnedDir, round, heldFile), text)
}

// end deletes the packs of a round that is over, but for those that have
// something live in them which no pack in use has: they come back.
func (c *collection) end(round string) error {
	dir := filepath.Join(condemnedDir, round)
	c.s.mu.Lock()
	var back, gone []*packFile
	for _, p := range c.s.packs {
		switch {
		case p.dir != dir:
		case slices.ContainsFunc(p.entries, func(e pack.Entry) bool { return c.needs(p, e.ID) }):
			back = append(back, p)
		default:
			gone = append(gone, p)
		}
	}
	for name := range c.s.bad { // what cannot be read is kept for who repairs it
		if _, err := os.Stat(c.s.path(dir, name)); err == nil {
			back = append(back, &packFile{name: name, dir: dir})
		}
	}
	c.s.mu.Unlock()
	for _, p := range back {
		if err := os.Rename(c.s.path(dir, p.name), c.s.path(packsDir, p.name)); err != nil {
			return err
		}
	}
	if len(back) > 0 {
		if err := disk.SyncDir(c.s.path(packsDir)); err != nil {
			return err
		}
	}
	if err := failReturned.Hit(); err != nil {
		return err
	}
	for _, p := range gone {
		if err := os.Remove(c.s.path(dir, p.name)); err != nil {
			return err
		}
		if err := failDeleted.Hit(); err != nil {
			return err
		}
	}
	for _, name := range []string{"." + heldFile, heldFile, ""} {
		if err := os.Remove(c.s.path(dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// needs reports whether a condemned pack is what keeps a live chunk.
func (c *collection) needs(p *packFile, id chunk.ID) bool {
	if _, ok := c.live[id]; !ok {
		return false
	}
	at, ok := c.s.index[id]
	return ok && at.pack.condemned
}

// choose finds the packs in use that are dead as a whole, and those that are
// worth to be written anew.
func (c *collection) choose() (dead, repack []*packFile) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	var small []*packFile
	for _, p := range c.s.packs {
		if p.condemned {
			continue
		}
		var all, live int64
		for i := range p.entries {
			all += int64(p.entries[i].Stored)
			if c.livesIn(p, i) {
				live += int64(p.entries[i].Stored)
			}
		}
		switch {
		case live == 0:
			dead = append(dead, p)
		case float64(live) < leastLive*float64(all):
			repack = append(repack, p)
		case p.size < smallPack:
			small = append(small, p)
		}
	}
	if len(small) >= manySmall {
		repack = append(repack, small...)
	}
	return dead, repack
}

// livesIn reports whether a chunk of a pack is live, and read from there.
func (c *collection) livesIn(p *packFile, i int) bool {
	at := c.s.index[p.entries[i].ID]
	_, live := c.live[p.entries[i].ID]
	return live && at.pack == p && at.i == int32(i)
}

// condemn moves packs aside, and ends the round if nobody can need them.
func (c *collection) condemn(packs []*packFile) error {
	if len(packs) == 0 {
		return nil
	}
	round := strings.ToLower(rand.Text())
	dir := filepath.Join(condemnedDir, round)
	if err := os.Mkdir(c.s.path(dir), 0o700); err != nil {
		return err
	}
	if err := failRound.Hit(); err != nil {
		return err
	}
	for _, p := range packs {
		if err := os.Rename(c.s.path(packsDir, p.name), c.s.path(dir, p.name)); err != nil {
			return err
		}
		if err := failCondemned.Hit(); err != nil {
			return err
		}
	}
	for _, d := range []string{condemnedDir, dir, packsDir} {
		if err := disk.SyncDir(c.s.path(d)); err != nil {
			return err
		}
	}
	text, err := c.note(round)
	if err != nil {
		return err
	}
	if err := failHeld.Hit(); err != nil {
		return err
	}
	if err := c.s.Refresh(); err != nil {
		return err
	}
	if len(text) > 0 {
		return nil
	}
	// Nobody holds a lease; but somebody may have published a record since
	// the last look.
	if err := c.mark(c.ctx, c.live); err != nil {
		return err
	}
	if err := c.s.Refresh(); err != nil {
		return err
	}
	if err := c.end(round); err != nil {
		return err
	}
	return c.s.Refresh()
}

// repack writes the live chunks of packs into new ones and condemns the old.
func (c *collection) repack(packs []*packFile) error {
	if err := c.ctx.Err(); err != nil {
		return fault.New(fault.Canceled, "%w", err)
	}
	l, err := c.s.Lease()
	if err != nil {
		return err
	}
	err = c.copyLive(packs, l)
	// It must not hold what is condemned now.
	if err := errors.Join(err, l.Release()); err != nil {
		return err
	}
	if err := failRepacked.Hit(); err != nil {
		return err
	}
	c.out.Repacked += len(packs)
	return c.condemn(packs)
}

func (c *collection) copyLive(packs []*packFile, l *lease.Lease) error {
	w, err := c.s.Begin(c.ctx, l)
	if err != nil {
		return err
	}
	var buf []byte
	for _, p := range packs {
		for i := range p.entries {
			c.s.mu.Lock()
			live := c.livesIn(p, i)
			c.s.mu.Unlock()
			if !live {
				continue
			}
			id := p.entries[i].ID
			if buf, err = c.s.Append(buf[:0], id); err == nil {
				err = w.move(id, buf)
			}
			if err != nil {
				w.Abort()
				return err
			}
		}
	}
	_, err = w.Commit()
	return err
}
