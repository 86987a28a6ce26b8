package host_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/host"
	"github.com/sandtree/sandtree/internal/host/control"
	"github.com/sandtree/sandtree/internal/supervisor"
	supervisorcontrol "github.com/sandtree/sandtree/internal/supervisor/control"
	"github.com/sandtree/sandtree/internal/wire"
	"github.com/sandtree/sandtree/internal/worker"
)

// The daemons of these tests are this program in another role: the real host
// and supervisor process, with a node that passes the test's questions on and
// an engine that keeps sandboxes in name only.
var roles = map[string]func() error{
	"serve":      roleServe,
	"node":       roleNode,
	"supervisor": roleSupervisor,
	"worker":     func() error { return worker.Main(context.Background(), logger()) },
	"wait":       func() error { select {} },
}

// Environment of the daemons.
const (
	envState      = "SANDTREE_TEST_STATE"
	envSocket     = "SANDTREE_TEST_SOCKET"
	envBrokenNode = "SANDTREE_TEST_BROKEN_NODE"
	envFullDisk   = "SANDTREE_TEST_FULL_DISK"
	envBroken     = "SANDTREE_TEST_BROKEN_ENGINE"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && roles[os.Args[1]] != nil {
		if err := roles[os.Args[1]](); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %s: %v; hint: %s\n", os.Args[1], fault.KindOf(err), err, fault.HintOf(err))
			os.Exit(fault.Code(fault.KindOf(err)).Exit)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func logger() *slog.Logger { return slog.New(slog.NewTextHandler(os.Stderr, nil)) }

func roleServe() error {
	// Tests must run on a machine whose disk is rather full.
	reserve := int64(1 << 20)
	if os.Getenv(envFullDisk) != "" {
		reserve = 1 << 60
	}
	return host.Serve(context.Background(), host.Config{
		State:       os.Getenv(envState),
		Socket:      os.Getenv(envSocket),
		PoolBytes:   320 << 20,
		HostReserve: reserve,
		Log:         logger(),
	})
}

// The test's verbs of the node. Those of the host are passed on as they are.
const (
	verbEvents   = "events"   // number of events to wait for → events so far
	verbCreate   = "create"   // family and sandbox → nothing
	verbList     = "list"     // family → ListReply
	verbIdentity = "identity" // → what a node is
)

type sandboxOf struct{ Family, Sandbox string }

type identity struct {
	Status   map[string]string // of /proc/self/status
	Files    []string          // descriptors' targets
	CanWrite map[string]string // node's directory → error
}

type testNode struct {
	host *control.Client

	mu          sync.Mutex
	changed     sync.Cond
	events      []string
	supervisors map[string]*supervisorcontrol.Client
}

func roleNode() error {
	if os.Getenv(envBrokenNode) != "" {
		return fault.New(fault.Internal, "this node is broken")
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	n := &testNode{supervisors: map[string]*supervisorcontrol.Client{}}
	n.changed.L = &n.mu
	c, l, err := control.Inherited(control.Events{
		SupervisorDied: func(d control.SupervisorDied) { n.event("died " + d.Family + ": " + d.Reason) },
		LowDisk:        func(control.LowDisk) { n.event("low disk") },
	})
	if err != nil {
		return err
	}
	n.host = c
	fs, socks, err := c.Families(ctx)
	if err != nil {
		return err
	}
	for i, f := range fs {
		if err := n.adopt(f.ID, socks[i]); err != nil {
			return err
		}
	}
	if err := c.Ready(ctx); err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { l.Close() })
	mux := n.verbs()
	for {
		conn, err := l.Accept()
		if err != nil {
			return nil
		}
		go wire.NewPeer(conn.(*net.UnixConn), mux, logger()).Serve(ctx)
	}
}

func (n *testNode) event(s string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.events = append(n.events, s)
	n.changed.Broadcast()
}

func (n *testNode) adopt(family string, sock *os.File) error {
	c, err := supervisorcontrol.NewClient(sock, supervisorcontrol.Events{})
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if old := n.supervisors[family]; old != nil {
		old.Close()
	}
	n.supervisors[family] = c
	return nil
}

func (n *testNode) supervisor(family string) *supervisorcontrol.Client {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.supervisors[family]
}

func (n *testNode) verbs() *wire.Mux {
	m := wire.NewMux()
	handle(m, control.VerbInfo, func(ctx context.Context, _ wire.None) (control.Info, error) { return n.host.Info(ctx) })
	handle(m, control.VerbStats, func(ctx context.Context, _ wire.None) (control.Stats, error) { return n.host.Stats(ctx) })
	handle(m, control.VerbEnsureFamily, func(ctx context.Context, req control.EnsureFamilyRequest) (control.Family, error) {
		f, sock, err := n.host.EnsureFamily(ctx, req)
		if err != nil {
			return f, err
		}
		return f, n.adopt(f.ID, sock)
	})
	handle(m, control.VerbEndFamily, func(ctx context.Context, req control.FamilyRequest) (wire.None, error) {
		return wire.None{}, n.host.EndFamily(ctx, req.Family)
	})
	handle(m, verbEvents, func(_ context.Context, want int) ([]string, error) {
		n.mu.Lock()
		defer n.mu.Unlock()
		for len(n.events) < want {
			n.changed.Wait()
		}
		return n.events, nil
	})
	handle(m, verbCreate, func(ctx context.Context, s sandboxOf) (wire.None, error) {
		_, err := n.supervisor(s.Family).Create(ctx, supervisorcontrol.CreateRequest{Sandbox: s.Sandbox})
		return wire.None{}, err
	})
	handle(m, verbList, func(ctx context.Context, family string) (supervisorcontrol.ListReply, error) {
		return n.supervisor(family).List(ctx)
	})
	handle(m, verbIdentity, func(ctx context.Context, _ wire.None) (identity, error) { return n.identity(ctx) })
	return m
}

func handle[Req, Resp any](m *wire.Mux, verb string, f func(context.Context, Req) (Resp, error)) {
	wire.Handle(m, verb, func(ctx context.Context, req Req, _ []*os.File) (Resp, []*os.File, error) {
		resp, err := f(ctx, req)
		return resp, nil, err
	})
}

func (n *testNode) identity(ctx context.Context) (identity, error) {
	id := identity{Status: map[string]string{}, CanWrite: map[string]string{}}
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return id, err
	}
	for line := range strings.Lines(string(b)) {
		k, v, _ := strings.Cut(line, ":")
		id.Status[k] = strings.Join(strings.Fields(v), " ")
	}
	info, err := n.host.Info(ctx)
	if err != nil {
		return id, err
	}
	for _, dir := range []string{"images", "node", "sessions", "", "pools"} {
		msg := ""
		f := filepath.Join(info.NodeState, dir, "probe")
		err := os.WriteFile(f, nil, 0o600)
		if err == nil {
			err = os.Remove(f)
		}
		if err != nil {
			msg = err.(*os.PathError).Err.Error()
		}
		id.CanWrite[dir] = msg
	}
	return id, nil
}

// paper is an engine whose sandboxes are names.
type paper struct {
	supervisor.Engine
	mu   sync.Mutex
	list supervisorcontrol.ListReply
}

// roleSupervisor starts a process beside its engine that does not end by
// itself, like a stub that hangs, and tells its number in the pool.
func roleSupervisor() error {
	return supervisor.Main(context.Background(), logger(), func(cfg supervisorcontrol.Config, _ supervisorcontrol.Events, _ *slog.Logger) (supervisor.Engine, error) {
		switch os.Getenv(envBroken) + cfg.Family {
		case "refuse-" + cfg.Family:
			return nil, fault.New(fault.Unsupported, "no such kernel").WithHint("get another")
		case "die-" + cfg.Family:
			os.Exit(9)
		}
		for _, dir := range cfg.Layers {
			if b, err := os.ReadFile(filepath.Join(dir, "hello")); err != nil || string(b) != "hello\n" {
				return nil, fmt.Errorf("layer: %q, %w", b, err)
			}
		}
		cmd := exec.Command("/proc/self/exe", "wait")
		cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true}
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		return &paper{}, os.WriteFile(filepath.Join(cfg.Pool, "orphan"), fmt.Append(nil, cmd.Process.Pid), 0o600)
	})
}

func (p *paper) Create(_ context.Context, req supervisorcontrol.CreateRequest) (supervisorcontrol.Sandbox, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := supervisorcontrol.Sandbox{ID: req.Sandbox}
	p.list.Sandboxes = append(p.list.Sandboxes, s)
	return s, nil
}

func (p *paper) List(context.Context) (supervisorcontrol.ListReply, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.list, nil
}

func (p *paper) UseWorker(context.Context, *os.File) error { return nil }

func (p *paper) Close(context.Context) error { return nil }
