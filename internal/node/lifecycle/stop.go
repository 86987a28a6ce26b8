package lifecycle

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	hostcontrol "github.com/sandtree/sandtree/internal/host/control"
	"github.com/sandtree/sandtree/internal/node/session"
	"github.com/sandtree/sandtree/internal/store"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// sleepers is how many sandboxes are hibernated at a time when the daemon ends:
// while one is written another is captured.
const sleepers = 4

// HibernateAll puts all that runs to sleep, since the daemon is about to end, and
// waits for checkpoints that are still to be durable. It says what is lost: the
// states since their last durable checkpoint of sandboxes that cannot be captured, or
// were not when ctx ended, and checkpoints that were to be in memory alone. Nobody
// may use sandboxes meanwhile.
func (s *Sandboxes) HibernateAll(ctx context.Context) hostcontrol.Stopped {
	s.goldens.close()
	s.mu.Lock()
	var all []*sandbox
	everything := values(s.live)
	for _, b := range everything {
		if rec := b.record(); !rec.Golden && rec.State != store.Removing && rec.State != store.Creating {
			all = append(all, b)
		}
	}
	s.mu.Unlock()
	slices.SortFunc(all, func(a, b *sandbox) int { return a.rec.Created.Compare(b.rec.Created) })
	var (
		mu  sync.Mutex
		wg  sync.WaitGroup
		out hostcontrol.Stopped
	)
	turns := make(chan struct{}, sleepers)
	for _, b := range all {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			slept, lost := s.hibernateOne(ctx, b)
			mu.Lock()
			defer mu.Unlock()
			if slept {
				out.Hibernated++
			}
			out.Lost = append(out.Lost, lost...)
		})
	}
	wg.Wait()
	s.keepGoldens(ctx, everything)
	out.Time = time.Now().UTC()
	return out
}

// hibernateOne does so for one sandbox, which need not run.
func (s *Sandboxes) hibernateOne(ctx context.Context, b *sandbox) (slept bool, lost []hostcontrol.Loss) {
	b.mu.Lock()
	defer b.mu.Unlock()
	rec := b.record()
	name := display(rec)
	lose := func(format string, args ...any) {
		lost = append(lost, hostcontrol.Loss{Sandbox: rec.ID, Name: name, What: fmt.Sprintf(format, args...)})
	}
	if rec.State == store.Running {
		err := ctx.Err()
		if err == nil {
			_, err = s.pause(ctx, b, true)
		}
		if slept = err == nil; !slept {
			lose("%s", s.notSlept(b, err))
		}
	}
	b.recMu.Lock()
	dead := b.fam == nil
	b.recMu.Unlock()
	if dead { // what is durable of it is so already
		return slept, lost
	}
	all, err := s.store.Checkpoints(ctx, rec.ID)
	if err != nil {
		s.log.Error("which checkpoints a sandbox has is not known", "sandbox", rec.ID, "error", err)
	}
	for _, c := range all {
		if c.Info.ID == "" || c.Info.Durable == control.DurableYes {
			continue
		}
		reason, wished := "it was to be in memory alone", c.Info.Durable == control.DurableNo
		if !wished {
			if reason = s.keepNow(ctx, b, c); reason == "" {
				continue
			}
		}
		called := c.Name
		if called == "" {
			called = c.ID
		}
		lose("checkpoint %s: %s", called, reason)
		lost[len(lost)-1].Wished = wished
	}
	return slept, lost
}

// keepNow waits until a checkpoint is durable, or says why it is not.
func (s *Sandboxes) keepNow(ctx context.Context, b *sandbox, c store.Checkpoint) (reason string) {
	client, err := b.tree()
	if err != nil {
		return err.Error()
	}
	info, err := client.Kept(ctx, control.CheckpointRef{Sandbox: c.Sandbox, Checkpoint: c.ID})
	if err != nil {
		return err.Error()
	}
	s.note(ctx, info)
	return info.DurableReason
}

// notSlept notes that a sandbox runs to the end of the daemon, and says what that
// costs. b.mu is held.
func (s *Sandboxes) notSlept(b *sandbox, cause error) string {
	ctx := context.Background()
	reason := fmt.Sprintf("the daemon was stopped and could not hibernate it: %v", cause)
	may, err := s.mayComeBack(ctx, b.record())
	if err == nil && !may {
		s.lose(b, reason, session.Lost)
		return fmt.Sprintf("all of it: %v", cause)
	}
	_, e := s.update(ctx, b, func(r *store.Sandbox) { r.State, r.Reason = store.Hibernated, reason })
	if err != nil || e != nil {
		s.log.Error("what became of a sandbox could not be recorded", "sandbox", b.record().ID, "error", e)
	}
	return fmt.Sprintf("what it did since its last durable checkpoint: %v", cause)
}
