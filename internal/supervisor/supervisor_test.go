package supervisor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/supervisor"
	"github.com/sandtree/sandtree/internal/supervisor/control"
	"github.com/sandtree/sandtree/internal/wire"
)

// TestMain runs a supervisor in a process of its own, started as the host does
// it, with an engine that keeps sandboxes in name only.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "supervisor" {
		log := slog.New(slog.NewTextHandler(os.Stderr, nil))
		if err := supervisor.Main(context.Background(), log, newPaper); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// paper is an engine that keeps sandboxes and sessions as names. Verbs that
// it does not have panic in the embedded nil interface.
type paper struct {
	supervisor.Engine
	cfg    control.Config
	events control.Events

	mu        sync.Mutex
	sandboxes map[string]control.Sandbox
}

func newPaper(cfg control.Config, events control.Events, _ *slog.Logger) (supervisor.Engine, error) {
	if cfg.Family == "broken" {
		return nil, fault.New(fault.Unsupported, "no such kernel").WithHint("get another")
	}
	return &paper{cfg: cfg, events: events, sandboxes: map[string]control.Sandbox{}}, nil
}

func (p *paper) Create(_ context.Context, req control.CreateRequest) (control.Sandbox, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.sandboxes[req.Sandbox]; ok {
		return control.Sandbox{}, fault.New(fault.Exists, "sandbox %s is there", req.Sandbox)
	}
	s := control.Sandbox{ID: req.Sandbox, Hostname: req.Hostname, Alive: true}
	p.sandboxes[s.ID] = s
	return s, nil
}

func (p *paper) Remove(_ context.Context, req control.SandboxRequest) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.sandboxes, req.Sandbox)
	return nil
}

func (p *paper) List(context.Context) (control.ListReply, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var l control.ListReply
	for _, s := range p.sandboxes {
		l.Sandboxes = append(l.Sandboxes, s)
	}
	return l, nil
}

// Exec ends at once, with its first argument as output.
func (p *paper) Exec(_ context.Context, req control.ExecRequest) (control.Session, []*os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return control.Session{}, nil, err
	}
	defer w.Close()
	if _, err := io.WriteString(w, req.Argv[0]); err != nil {
		return control.Session{}, nil, err
	}
	s := control.Session{ID: req.Session, Sandbox: req.Sandbox, Argv: req.Argv, Ended: true}
	p.events.SessionEnded(s)
	return s, []*os.File{r}, nil
}

func (p *paper) Forget(context.Context, control.SessionRequest) error { return nil }

// Close leaves a sign for the test.
func (p *paper) Close(context.Context) error {
	return os.WriteFile(p.cfg.Pool, []byte("closed"), 0o600)
}

type process struct {
	*control.Client
	cmd *exec.Cmd
	// sign is the file that the engine's Close writes.
	sign string
}

func start(t *testing.T, family string) process {
	t.Helper()
	a, b, err := wire.Pair()
	if err != nil {
		t.Fatal(err)
	}
	sign := t.TempDir() + "/sign"
	cfg, err := os.CreateTemp(t.TempDir(), "config")
	if err != nil {
		t.Fatal(err)
	}
	defer cfg.Close()
	if err := json.NewEncoder(cfg).Encode(control.Config{Family: family, Pool: sign}); err != nil {
		t.Fatal(err)
	}
	if _, err := cfg.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "supervisor")
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{b, cfg}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	b.Close()
	c, err := control.NewClient(a, control.Events{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		if cmd.ProcessState == nil {
			if err := cmd.Wait(); err != nil {
				t.Errorf("supervisor: %v", err)
			}
		}
	})
	return process{c, cmd, sign}
}

// client connects one more client.
func (p process) client(t *testing.T, events control.Events) *control.Client {
	t.Helper()
	a, b, err := wire.Pair()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Client.Client(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	b.Close()
	c, err := control.NewClient(a, events)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); c.Wait() })
	return c
}

func TestSandboxesOutliveAClient(t *testing.T) {
	p := start(t, "tp-1")
	if err := p.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := p.client(t, control.Events{})
	if _, err := first.Create(t.Context(), control.CreateRequest{Sandbox: "sb-1"}); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Create(t.Context(), control.CreateRequest{Sandbox: "sb-1"}); !fault.Is(err, fault.Exists) {
		t.Errorf("the name twice: %v", err)
	}
	first.Close()
	l, err := p.client(t, control.Events{}).List(t.Context())
	if err != nil || len(l.Sandboxes) != 1 || l.Sandboxes[0].ID != "sb-1" {
		t.Errorf("the next client sees %+v, %v", l, err)
	}
}

func TestEndedSessionsAreToldUntilForgotten(t *testing.T) {
	p := start(t, "tp-1")
	told := make(chan string, 10)
	events := control.Events{SessionEnded: func(s control.Session) { told <- s.ID }}
	c := p.client(t, events)
	other := p.client(t, events)
	for _, id := range []string{"se-1", "se-2", "se-3"} {
		s, files, err := c.Exec(t.Context(), control.ExecRequest{Sandbox: "sb-" + id, Session: id, Argv: []string{"hello"}})
		if err != nil || s.ID != id || len(files) != 1 {
			t.Fatalf("session %+v, %d files, %v", s, len(files), err)
		}
		b, err := io.ReadAll(files[0])
		files[0].Close()
		if err != nil || string(b) != "hello" {
			t.Errorf("output %q, %v", b, err)
		}
		// Both clients are told.
		if a, b := <-told, <-told; a != id || b != id {
			t.Errorf("told of %s and %s, not %s", a, b, id)
		}
	}
	if err := c.Forget(t.Context(), control.SessionRequest{Sandbox: "sb-se-2", Session: "se-2"}); err != nil {
		t.Fatal(err)
	}
	if err := c.Remove(t.Context(), "sb-se-3"); err != nil {
		t.Fatal(err)
	}
	c.Close()
	other.Close()
	p.client(t, events)
	last := p.client(t, control.Events{SessionEnded: func(s control.Session) { told <- s.ID + " again" }})
	// Events come in order, so after this one nothing old is on its way.
	_, files, err := last.Exec(t.Context(), control.ExecRequest{Sandbox: "sb-9", Session: "se-9", Argv: []string{""}})
	if err != nil {
		t.Fatal(err)
	}
	files[0].Close()
	var got []string
	for !slices.Contains(got, "se-9") || !slices.Contains(got, "se-9 again") {
		got = append(got, <-told)
	}
	slices.Sort(got)
	if want := []string{"se-1", "se-1 again", "se-9", "se-9 again"}; !slices.Equal(got, want) {
		t.Errorf("told of %v, want %v", got, want)
	}
}

func TestEndsWithItsHost(t *testing.T) {
	p := start(t, "tp-1")
	c := p.client(t, control.Events{})
	p.Close()
	if err := p.cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(p.sign); err != nil || string(b) != "closed" {
		t.Errorf("the engine was not closed: %q, %v", b, err)
	}
	<-c.Done()
	if _, err := c.List(t.Context()); !fault.Is(err, fault.Unavailable) {
		t.Errorf("call of a supervisor that is gone: %v", err)
	}
}

func TestKilledSupervisorFailsCalls(t *testing.T) {
	p := start(t, "tp-1")
	c := p.client(t, control.Events{})
	if err := p.cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	failed := make(chan error)
	go func() {
		_, err := c.List(t.Context())
		failed <- err
	}()
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; !fault.Is(err, fault.Unavailable) {
		t.Errorf("pending call: %v", err)
	}
	p.cmd.Wait()
}

func TestEngineThatCannotStart(t *testing.T) {
	p := start(t, "broken")
	err := p.Ready(t.Context())
	if !fault.Is(err, fault.Unsupported) || fault.HintOf(err) != "get another" {
		t.Errorf("ready: %v, hint %q", err, fault.HintOf(err))
	}
	_, b, err := wire.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := p.Client.Client(t.Context(), b); !fault.Is(err, fault.Unsupported) {
		t.Errorf("client: %v", err)
	}
}

func TestBadClients(t *testing.T) {
	p := start(t, "tp-1")
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if err := p.Client.Client(t.Context(), null); !fault.Is(err, fault.Invalid) {
		t.Errorf("a file for a socket: %v", err)
	}
	if _, _, err := wire.Call[wire.None](t.Context(), p.Conn, control.VerbClient, wire.None{}); !fault.Is(err, fault.Invalid) {
		t.Errorf("no socket: %v", err)
	}
	// Garbage from a client ends that client alone.
	a, b, err := wire.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if err := p.Client.Client(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	b.Close()
	if _, err := a.WriteString("GET / HTTP/1.1\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	a.SetReadDeadline(time.Now().Add(10 * time.Second))
	if n, err := a.Read(make([]byte, 1)); n != 0 || err != io.EOF && !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("read %d bytes, %v", n, err)
	}
	// A verb that panics ends its call alone.
	if _, err := p.client(t, control.Events{}).Stats(t.Context(), "sb-1"); !fault.Is(err, fault.Internal) {
		t.Errorf("panic: %v", err)
	}
	if err := p.Ready(t.Context()); err != nil {
		t.Error(err)
	}
}
