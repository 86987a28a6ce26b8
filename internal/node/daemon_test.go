package node_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/fault"
	hostcontrol "github.com/sandtree/sandtree/internal/host/control"
	"github.com/sandtree/sandtree/internal/linux/roottest"
	"github.com/sandtree/sandtree/internal/node"
	"github.com/sandtree/sandtree/internal/store"
	"github.com/sandtree/sandtree/internal/store/sqlite"
	"github.com/sandtree/sandtree/internal/supervisor"
	"github.com/sandtree/sandtree/internal/supervisor/control"
	"github.com/sandtree/sandtree/internal/wire"
)

// TestMain lets the test's own program be the node and the supervisors, each
// in a process of its own, started as the host does it.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "node" || os.Args[1] == "supervisor") {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		level := slog.LevelWarn
		if slices.Contains(os.Args[2:], "verbose") {
			level = slog.LevelInfo
		}
		log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
		var err error
		if os.Args[1] == "node" {
			err = node.Main(ctx, node.Config{Log: log})
		} else {
			err = supervisor.Main(ctx, log, newLocal)
		}
		stop()
		if err != nil {
			fmt.Fprintln(os.Stderr, os.Args[1]+":", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// daemon is a host for tests: it starts the node and the supervisors, and has
// neither pools nor mounts.
type daemon struct {
	t        *testing.T
	dir      string
	listener *os.File
	socket   string

	mu       sync.Mutex
	families map[string]*testFamily
	peer     *wire.Peer
	node     *exec.Cmd
}

type testFamily struct {
	hostcontrol.Family
	cmd    *exec.Cmd
	client *control.Client
	ended  bool // on request
}

// start starts a daemon with a template "debian" in its store.
func start(t *testing.T) (*daemon, *client.Client) {
	t.Helper()
	return startIn(t, func(string) {})
}

// startIn starts a daemon in a directory that prepare is called with first.
func startIn(t *testing.T, prepare func(dir string)) (*daemon, *client.Client) {
	t.Helper()
	d := newDaemon(t, prepare)
	t.Cleanup(d.stop)
	d.startNode()
	c, err := client.Dial(d.socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return d, c
}

// newDaemon makes a daemon whose node is not started yet, in a directory that prepare is
// called with first.
func newDaemon(t *testing.T, prepare func(dir string)) *daemon {
	t.Helper()
	roottest.Need(t, "owners of files")
	dir, err := os.MkdirTemp("", "sandtree-node-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	prepare(dir)
	d := &daemon{t: t, dir: dir, socket: filepath.Join(dir, "api.sock"), families: map[string]*testFamily{}}
	for _, sub := range []string{"node", "images", "sessions", "pool"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	db, err := sqlite.Open(t.Context(), filepath.Join(dir, "node", "node.db"))
	if err == nil {
		err = db.AddTemplate(t.Context(), store.Template{ID: "tp-debian", Name: "debian", Layers: []string{"sha256:1"}, Created: time.Now()})
		db.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", d.socket)
	if err != nil {
		t.Fatal(err)
	}
	if d.listener, err = l.(*net.UnixListener).File(); err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close()
	return d
}

func (d *daemon) startNode() {
	d.t.Helper()
	ready := make(chan struct{})
	d.run(exec.Command(os.Args[0], "node"), func(context.Context) { close(ready) })
	select {
	case <-ready:
	case <-time.After(30 * time.Second):
		d.t.Fatal("the node does not get ready")
	}
}

// run starts a node; ready is called when it says that it serves.
func (d *daemon) run(cmd *exec.Cmd, ready func(ctx context.Context)) {
	d.t.Helper()
	ours, theirs, err := wire.Pair()
	if err != nil {
		d.t.Fatal(err)
	}
	defer theirs.Close()
	sock, err := wire.Open(ours)
	if err != nil {
		d.t.Fatal(err)
	}
	cmd.ExtraFiles = []*os.File{theirs, d.listener}
	if cmd.Stderr == nil {
		cmd.Stderr = os.Stderr
	}
	if err := cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	peer := wire.NewPeer(sock, d.verbs(ready), slog.Default())
	go peer.Serve(context.Background())
	d.mu.Lock()
	d.node, d.peer = cmd, peer
	d.mu.Unlock()
}

// killNode kills the node without warning, and returns when it is gone.
func (d *daemon) killNode() {
	d.node.Process.Kill()
	d.node.Wait()
}

func (d *daemon) verbs(ready func(ctx context.Context)) *wire.Mux {
	m := wire.NewMux()
	wire.Handle(m, hostcontrol.VerbInfo, func(context.Context, wire.None, []*os.File) (hostcontrol.Info, []*os.File, error) {
		return hostcontrol.Info{Version: "test", State: d.dir, NodeState: d.dir, Socket: d.socket}, nil, nil
	})
	wire.Handle(m, hostcontrol.VerbReady, func(ctx context.Context, _ wire.None, _ []*os.File) (wire.None, []*os.File, error) {
		ready(ctx)
		return wire.None{}, nil, nil
	})
	wire.Handle(m, hostcontrol.VerbEnsureFamily, func(ctx context.Context, req hostcontrol.EnsureFamilyRequest, _ []*os.File) (hostcontrol.Family, []*os.File, error) {
		f, err := d.ensure(ctx, req.Family)
		if err != nil {
			return hostcontrol.Family{}, nil, err
		}
		sock, err := f.connect(ctx)
		return f.Family, []*os.File{sock}, err
	})
	wire.Handle(m, hostcontrol.VerbFamilies, func(ctx context.Context, _ wire.None, _ []*os.File) (r hostcontrol.FamiliesReply, socks []*os.File, err error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, f := range d.families {
			sock, err := f.connect(ctx)
			if err != nil {
				return r, nil, err
			}
			r.Families, socks = append(r.Families, f.Family), append(socks, sock)
		}
		return r, socks, nil
	})
	wire.Handle(m, hostcontrol.VerbEndFamily, func(_ context.Context, req hostcontrol.FamilyRequest, _ []*os.File) (wire.None, []*os.File, error) {
		d.end(req.Family)
		return wire.None{}, nil, nil
	})
	return m
}

func (d *daemon) ensure(ctx context.Context, id string) (*testFamily, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if f := d.families[id]; f != nil {
		return f, nil
	}
	ours, theirs, err := wire.Pair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	config, err := os.CreateTemp(d.dir, "config")
	if err != nil {
		return nil, err
	}
	defer config.Close()
	json.NewEncoder(config).Encode(control.Config{Family: id, Pool: filepath.Join(d.dir, "pool")})
	config.Seek(0, 0)
	cmd := exec.Command(os.Args[0], "supervisor")
	cmd.ExtraFiles = []*os.File{theirs, config}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	c, err := control.NewClient(ours, control.Events{})
	if err == nil {
		err = c.Ready(ctx)
	}
	f := &testFamily{Family: hostcontrol.Family{ID: id, PID: cmd.Process.Pid}, cmd: cmd, client: c}
	d.families[id] = f
	go d.watch(f)
	return f, err
}

// watch tells the node of a supervisor that died.
func (d *daemon) watch(f *testFamily) {
	err := f.cmd.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	if f.ended {
		return
	}
	delete(d.families, f.ID)
	if d.peer != nil {
		d.peer.Notify(hostcontrol.EventSupervisorDied, hostcontrol.SupervisorDied{Family: f.ID, PID: f.PID, Reason: fmt.Sprint(err)})
	}
}

func (d *daemon) end(id string) {
	d.mu.Lock()
	f := d.families[id]
	if f != nil {
		f.ended = true
		delete(d.families, id)
	}
	d.mu.Unlock()
	if f != nil {
		f.client.Close()
		waitGone(f.cmd.Process.Pid)
	}
}

func (f *testFamily) connect(ctx context.Context) (*os.File, error) {
	ours, theirs, err := wire.Pair()
	if err != nil {
		return nil, err
	}
	defer ours.Close()
	return theirs, f.client.Client(ctx, ours)
}

// stop ends everything in order and checks that a race detector found nothing.
func (d *daemon) stop() {
	d.node.Process.Signal(unix.SIGTERM)
	if err := d.node.Wait(); err != nil && !strings.Contains(err.Error(), "already") {
		d.t.Errorf("the node ended with: %v", err)
	}
	d.mu.Lock()
	ids := slices.Collect(maps.Keys(d.families))
	d.mu.Unlock()
	for _, id := range ids {
		d.end(id)
	}
	d.listener.Close()
	if left, _ := os.ReadDir(filepath.Join(d.dir, "pool")); len(left) > 0 {
		d.t.Errorf("supervisors left %v", left)
	}
}

func waitGone(pid int) {
	for range 1000 {
		if syscall.Kill(pid, 0) != nil {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// wantKind wants an error of a kind.
func wantKind(t *testing.T, err error, want fault.Kind) {
	t.Helper()
	if got := client.KindOf(err); got != client.ErrorKind(want) {
		t.Errorf("the error is %v (kind %q), want kind %q", err, got, want)
	}
}

// eventually wants something to become true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for range 2000 {
		if ok() {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("not within 10 s: %s", what)
}
