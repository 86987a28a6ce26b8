package lifecycle

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/sandtree/sandtree/internal/fault"
	hostcontrol "github.com/sandtree/sandtree/internal/host/control"
	"github.com/sandtree/sandtree/internal/store"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// family is a running supervisor. Its id is its template's; pid tells it from
// an earlier one of the same family.
type family struct {
	id     string
	pid    int
	client *control.Client
}

// families are the supervisors that run.
type families struct {
	host   Host
	events control.Events
	log    *slog.Logger
	// started is called with each new family before anybody else knows it.
	started func(context.Context, *family) error

	mu      sync.Mutex
	byID    map[string]*family
	startMu map[string]*sync.Mutex // one start of a family at a time
}

func newFamilies(host Host, events control.Events, started func(context.Context, *family) error, log *slog.Logger) *families {
	return &families{host: host, events: events, started: started, log: log, byID: map[string]*family{}, startMu: map[string]*sync.Mutex{}}
}

// running returns a family if it runs, or nil.
func (fs *families) running(id string) *family {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	f := fs.byID[id]
	if f == nil {
		return nil
	}
	select {
	case <-f.client.Done():
		return nil // the host will report it, or has
	default:
		return f
	}
}

// ensure returns a template's family and starts it if it does not run.
func (fs *families) ensure(ctx context.Context, t store.Template) (*family, error) {
	if f := fs.running(t.ID); f != nil {
		return f, nil
	}
	fs.mu.Lock()
	start := fs.startMu[t.ID]
	if start == nil {
		start = &sync.Mutex{}
		fs.startMu[t.ID] = start
	}
	fs.mu.Unlock()
	start.Lock()
	defer start.Unlock()
	if f := fs.running(t.ID); f != nil {
		return f, nil
	}
	req := hostcontrol.EnsureFamilyRequest{Family: t.ID}
	for _, d := range slices.Backward(t.Layers) {
		req.Layers = append(req.Layers, strings.TrimPrefix(d, "sha256:"))
	}
	info, sock, err := fs.host.EnsureFamily(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("start supervisor: %w", err)
	}
	c, err := control.NewClient(sock, fs.events)
	if err != nil {
		return nil, fmt.Errorf("connect to supervisor: %w", err)
	}
	f := &family{id: t.ID, pid: info.PID, client: c}
	if err := fs.started(ctx, f); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("tell the supervisor what it has on disk: %w", err)
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	fs.byID[t.ID] = f
	return f, nil
}

// connectAll connects to all supervisors that run.
func (fs *families) connectAll(ctx context.Context) ([]*family, error) {
	infos, socks, err := fs.host.Families(ctx)
	if err != nil {
		return nil, err
	}
	var all []*family
	for i, info := range infos {
		c, err := control.NewClient(socks[i], fs.events)
		if err != nil {
			fs.log.Error("connect to supervisor", "family", info.ID, "error", err)
			continue
		}
		f := &family{id: info.ID, pid: info.PID, client: c}
		fs.mu.Lock()
		fs.byID[info.ID] = f
		fs.mu.Unlock()
		all = append(all, f)
	}
	return all, nil
}

// died forgets a family whose supervisor, by its pid, has died. The report may
// come after the family was started anew.
func (fs *families) died(id string, pid int) {
	fs.mu.Lock()
	f := fs.byID[id]
	fs.mu.Unlock()
	if f != nil && f.pid == pid {
		fs.drop(id)
	}
}

// drop forgets a family that ended, and returns what it was.
func (fs *families) drop(id string) *family {
	fs.mu.Lock()
	f := fs.byID[id]
	delete(fs.byID, id)
	fs.mu.Unlock()
	if f != nil {
		_ = f.client.Close()
	}
	return f
}

// end ends a family in which nothing runs any more.
func (fs *families) end(ctx context.Context, id string) error {
	fs.drop(id)
	if err := fs.host.EndFamily(ctx, id); err != nil && !fault.Is(err, fault.NotFound) {
		return fmt.Errorf("end supervisor: %w", err)
	}
	return nil
}

// ids lists the families that run.
func (fs *families) ids() []string {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	var ids []string
	for id := range fs.byID {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (fs *families) close() {
	for _, id := range fs.ids() {
		fs.drop(id)
	}
}
