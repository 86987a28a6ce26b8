package host

import (
	"context"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/host/control"
	"github.com/sandtree/sandtree/internal/version"
	"github.com/sandtree/sandtree/internal/wire"
)

// newVerbs returns the verbs that a node may use.
func (h *host) newVerbs() *wire.Mux {
	m := wire.NewMux()
	wire.Handle(m, control.VerbInfo, func(context.Context, wire.None, []*os.File) (control.Info, []*os.File, error) {
		return h.info(), nil, nil
	})
	wire.Handle(m, control.VerbReady, func(context.Context, wire.None, []*os.File) (wire.None, []*os.File, error) {
		h.node.mu.Lock()
		defer h.node.mu.Unlock()
		h.node.ready = true
		return wire.None{}, nil, nil
	})
	wire.Handle(m, control.VerbEnsureFamily, func(ctx context.Context, req control.EnsureFamilyRequest, _ []*os.File) (control.Family, []*os.File, error) {
		f, sock, err := h.families.ensure(ctx, req)
		if err != nil {
			return control.Family{}, nil, err
		}
		return f, []*os.File{sock}, nil
	})
	wire.Handle(m, control.VerbFamilies, func(ctx context.Context, _ wire.None, _ []*os.File) (control.FamiliesReply, []*os.File, error) {
		return h.connectAll(ctx)
	})
	wire.Handle(m, control.VerbEndFamily, func(ctx context.Context, req control.FamilyRequest, _ []*os.File) (wire.None, []*os.File, error) {
		return wire.None{}, nil, h.families.finish(ctx, req.Family)
	})
	wire.Handle(m, control.VerbStats, func(context.Context, wire.None, []*os.File) (control.Stats, []*os.File, error) {
		s, err := h.stats()
		return s, nil, err
	})
	return m
}

func (h *host) info() control.Info {
	h.node.mu.Lock()
	pid, starts := h.node.pid, h.node.starts
	h.node.mu.Unlock()
	i := control.Info{
		Version:    version.String(),
		State:      h.layout.State,
		NodeState:  h.layout.NodeState(),
		Socket:     h.cfg.Socket,
		PID:        os.Getpid(),
		NodePID:    pid,
		NodeStarts: starts,
		Started:    h.started,
		UptimeNS:   time.Since(h.started).Nanoseconds(),
		Cgroup:     h.cgroups.String(),
		Families:   []control.Family{},
	}
	for _, c := range h.cgroups.Missing() {
		i.MissingControllers = append(i.MissingControllers, string(c))
	}
	for _, f := range h.families.running() {
		i.Families = append(i.Families, f.describe())
	}
	return i
}

// connectAll returns the running families with a connection to each. One whose
// supervisor dies meanwhile is left out; that is reported by an event.
func (h *host) connectAll(ctx context.Context) (control.FamiliesReply, []*os.File, error) {
	reply := control.FamiliesReply{Families: []control.Family{}}
	var socks []*os.File
	for _, f := range h.families.running() {
		sock, err := f.client(ctx)
		if fault.Is(err, fault.Unavailable) {
			continue
		}
		if err != nil {
			for _, s := range socks {
				s.Close()
			}
			return control.FamiliesReply{}, nil, err
		}
		reply.Families = append(reply.Families, f.describe())
		socks = append(socks, sock)
	}
	return reply, socks, nil
}

func (h *host) stats() (control.Stats, error) {
	free, reserve, err := h.disk()
	if err != nil {
		return control.Stats{}, err
	}
	s := control.Stats{DiskFreeBytes: free, DiskReserveBytes: reserve, Families: []control.FamilyStats{}}
	for _, f := range h.families.running() {
		fst := control.FamilyStats{ID: f.id}
		// Both fail only for a family that ends right now: it has nothing.
		if st, err := os.Stat(f.poolFile); err == nil {
			fst.PoolBytes = st.Size()
		}
		var fs unix.Statfs_t
		if err := unix.Statfs(h.layout.PoolMount(f.id), &fs); err == nil && fs.Type == unix.BTRFS_SUPER_MAGIC {
			fst.PoolFreeBytes = int64(fs.Bavail) * fs.Bsize
		}
		s.Families = append(s.Families, fst)
	}
	return s, nil
}
