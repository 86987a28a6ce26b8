package host

import (
	"context"
	"errors"
	"os"
	"regexp"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/host/control"
	"github.com/sandtree/sandtree/internal/host/idrange"
	"github.com/sandtree/sandtree/internal/linux/cgroup"
)

var familyID = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,62}$`)

// families are the running families.
//
// Lock order: a slot, then mu. A slot is held while its family starts or ends;
// mu only for a moment.
type families struct {
	host   *host
	parent *cgroup.Parent
	ids    *idrange.Table
	layers *layers

	mu     sync.Mutex
	slots  map[string]*slot
	closed bool
	wg     sync.WaitGroup // of watches
}

// slot is the place of a family, running or not.
type slot struct {
	// turn holds one token; a channel, so that waiting for it can end.
	turn   chan struct{}
	family *family // changed with turn and families.mu held
}

func newFamilies(h *host, parent *cgroup.Parent) *families {
	return &families{
		host:   h,
		parent: parent,
		layers: &layers{layout: h.layout, owner: h.cfg.NodeID, users: map[string]int{}},
		slots:  map[string]*slot{},
	}
}

// take waits for the family's slot.
func (fs *families) take(ctx context.Context, id string) (*slot, error) {
	if !familyID.MatchString(id) {
		return nil, fault.New(fault.Invalid, "family %.80q: an id is of lower-case letters, digits and dashes, at most 63", id)
	}
	fs.mu.Lock()
	s := fs.slots[id]
	if s == nil {
		s = &slot{turn: make(chan struct{}, 1)}
		fs.slots[id] = s
	}
	fs.mu.Unlock()
	select {
	case s.turn <- struct{}{}:
		return s, nil
	case <-ctx.Done():
		return nil, fault.New(fault.Canceled, "family %s: %w", id, ctx.Err())
	}
}

func (s *slot) give() { <-s.turn }

// fill puts a family into a slot. It fails if none may start any more.
func (fs *families) fill(s *slot, f *family) error {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if fs.closed {
		return fault.New(fault.Unavailable, "the daemon is ending")
	}
	s.family = f
	fs.wg.Go(func() { fs.watch(s, f) })
	return nil
}

func (fs *families) empty(s *slot) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	s.family = nil
}

// ensure returns the family with a new connection to its supervisor.
func (fs *families) ensure(ctx context.Context, req control.EnsureFamilyRequest) (control.Family, *os.File, error) {
	s, err := fs.take(ctx, req.Family)
	if err != nil {
		return control.Family{}, nil, err
	}
	defer s.give()
	if f := s.family; f != nil {
		if !slices.Equal(f.layers, req.Layers) {
			return control.Family{}, nil, fault.New(fault.Conflict, "family %s runs with other layers", f.id).
				WithHint("remove its sandboxes first")
		}
		sock, err := f.client(ctx)
		if err == nil || !f.gone() {
			return f.describe(), sock, err
		}
		fs.bury(s) // its watch had no turn yet
	}
	f, err := fs.start(ctx, req)
	if err != nil {
		return control.Family{}, nil, err
	}
	if err := fs.fill(s, f); err != nil {
		return control.Family{}, nil, errors.Join(err, fs.clean(f))
	}
	f.logger(fs.host.log).Info("family started")
	sock, err := f.client(ctx)
	return f.describe(), sock, err
}

// watch cleans up after a supervisor that dies by itself.
func (fs *families) watch(s *slot, f *family) {
	<-f.process.Done()
	s.turn <- struct{}{}
	defer s.give()
	if s.family == f { // else it was ended in order, or is buried
		fs.bury(s)
	}
}

// bury cleans up after the dead supervisor in a slot that the caller holds,
// and tells the node.
func (fs *families) bury(s *slot) {
	f := s.family
	f.process.Signal(unix.SIGKILL) // one without its connection is on its way
	reason := f.process.Reason()
	log := f.logger(fs.host.log)
	log.Error("supervisor died", "reason", reason)
	if err := fs.clean(f); err != nil {
		log.Error("clean up after a supervisor", "error", err)
	}
	fs.empty(s)
	fs.host.node.notify(control.EventSupervisorDied, control.SupervisorDied{Family: f.id, PID: f.process.PID(), Reason: reason})
}

// finish ends a family, if it runs, and gives its ids back.
func (fs *families) finish(ctx context.Context, id string) error {
	s, err := fs.take(ctx, id)
	if err != nil {
		return err
	}
	defer s.give()
	if err := fs.endSlot(s); err != nil {
		return err
	}
	// Nothing of the family is left to come back from.
	if err := os.RemoveAll(fs.host.layout.Repository(id)); err != nil {
		return fault.New(fault.Internal, "delete the durable checkpoints of family %s: %w", id, err)
	}
	return fs.ids.Drop(id)
}

// endSlot ends the family in a slot that the caller holds.
func (fs *families) endSlot(s *slot) error {
	f := s.family
	if f == nil {
		return nil
	}
	fs.empty(s)
	err := fs.end(f)
	f.logger(fs.host.log).Info("family ended")
	return err
}

// running lists the running families by id.
func (fs *families) running() []*family {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	var all []*family
	for _, s := range fs.slots {
		if s.family != nil {
			all = append(all, s.family)
		}
	}
	slices.SortFunc(all, func(a, b *family) int {
		if a.id < b.id {
			return -1
		}
		return 1
	})
	return all
}

// close ends all families, side by side, and removes the daemon's cgroups.
func (fs *families) close() error {
	fs.mu.Lock()
	fs.closed = true
	var all []*slot
	for _, s := range fs.slots {
		all = append(all, s)
	}
	fs.mu.Unlock()
	errs := make([]error, len(all), len(all)+1)
	var wg sync.WaitGroup
	for i, s := range all {
		wg.Go(func() {
			s.turn <- struct{}{}
			defer s.give()
			errs[i] = fs.endSlot(s)
		})
	}
	wg.Wait()
	fs.wg.Wait()
	return errors.Join(append(errs, removeCgroup(context.Background(), fs.parent))...)
}
