// Package node is the unprivileged part of the daemon: it serves the API,
// knows which sandboxes, sessions, templates and images there are, and keeps
// what sessions print.
//
// The host starts it with a connection to itself and the listening socket of
// the API as descriptors (package host/control), and starts another when it
// dies. Nothing that matters is in this process alone: records are in the
// store, output is in logs, bodies are the supervisors'. So a node can be
// killed at any instant, and the next one takes up where it was:
//
//	connections  how many clients there may be
//	rpc          translates the API's calls
//	lifecycle    sandboxes, checkpoints, sessions and templates as records and bodies
//	session      one running command: input, end, followers
//	output       one command's log
//	images       uploads, pulls, and the image store
//	transfer     tars to files in a sandbox and back
package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	hostcontrol "github.com/sandtree/sandtree/internal/host/control"
	"github.com/sandtree/sandtree/internal/node/connections"
	"github.com/sandtree/sandtree/internal/node/id"
	"github.com/sandtree/sandtree/internal/node/images"
	"github.com/sandtree/sandtree/internal/node/lifecycle"
	"github.com/sandtree/sandtree/internal/node/rpc"
	"github.com/sandtree/sandtree/internal/store/cache"
	"github.com/sandtree/sandtree/internal/store/sqlite"
)

// closeWithin is how long calls may take to end when the node is to end.
const closeWithin = time.Second

// Config is how a node runs.
type Config struct {
	// Log gets what the node has to say; nil means slog's default.
	Log *slog.Logger
}

// Main runs the node in a process that the host started for it, until ctx
// ends or the host is gone. Sandboxes and sessions go on.
func Main(ctx context.Context, cfg Config) error {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	files := raiseFileLimit(cfg.Log)
	var died deaths
	stopping := make(chan time.Duration, 1)
	host, listener, err := hostcontrol.Inherited(hostcontrol.Events{
		SupervisorDied: died.report,
		LowDisk: func(e hostcontrol.LowDisk) {
			cfg.Log.Warn("the disk of the state directory runs full", "free_bytes", e.FreeBytes, "reserve_bytes", e.ReserveBytes)
		},
		Stopping: func(e hostcontrol.Stopping) {
			select {
			case stopping <- time.Duration(e.WithinNS):
			default:
			}
		},
	})
	if err != nil {
		return err
	}
	defer func() { _ = host.Close() }()
	defer func() { _ = listener.Close() }()

	info, err := host.Info(ctx)
	if err != nil {
		return fmt.Errorf("node: %w", err)
	}
	dir := filepath.Join(info.NodeState, "node")
	tag, err := readTag(filepath.Join(dir, "tag"))
	if err != nil {
		return fmt.Errorf("node: %w", err)
	}
	file, err := sqlite.Open(ctx, filepath.Join(dir, "node.db"))
	if err != nil {
		return fmt.Errorf("node: %w", err)
	}
	db := cache.New(file)
	defer func() { _ = db.Close() }()
	im, err := images.Open(filepath.Join(info.NodeState, "images"), filepath.Join(dir, "uploads"), db)
	if err != nil {
		return fmt.Errorf("node: %w", err)
	}
	sandboxes, err := lifecycle.New(ctx, lifecycle.Config{
		Store: db, Host: host, Tag: tag, Sessions: filepath.Join(info.NodeState, "sessions"), Log: cfg.Log,
	})
	if err != nil {
		return fmt.Errorf("node: %w", err)
	}
	defer sandboxes.Close()
	died.deliver(sandboxes.SupervisorDied)

	server := NewServer(rpc.Handler(rpc.Config{
		Sandboxes: sandboxes, Images: im,
		Info: rpc.Info{
			Version: info.Version, State: info.State, Socket: info.Socket, Tag: tag, Kernel: kernel(),
			PID: os.Getpid(), Started: info.Started,
		},
	}), cfg.Log)
	// Sessions, records and images need the other half.
	bounded := connections.Bound(listener, files/2, cfg.Log)
	server.ConnState = bounded.State
	served := make(chan error, 1)
	go func() { served <- server.Serve(bounded) }()
	switch err := host.Ready(ctx); {
	case err == nil:
		cfg.Log.Info("node serves", "socket", info.Socket, "pid", os.Getpid())
	case ctx.Err() != nil: // what it serves already ends in order
		cfg.Log.Info("node is told to end before the host has heard that it serves", "pid", os.Getpid())
	default:
		_ = server.Close()
		return fmt.Errorf("node: %w", err)
	}
	if err := reserveReport(filepath.Join(dir, hostcontrol.StoppedFile)); err != nil {
		cfg.Log.Warn("no room is kept for the report of the daemon's end", "error", err)
	}
	within := time.Duration(0)
	select {
	case <-ctx.Done():
	case within = <-stopping:
	case <-host.Done():
		err = fault.New(fault.Unavailable, "node: the host is gone")
	case err = <-served:
		return fmt.Errorf("node: serve: %w", err)
	}
	// Followers of sessions would never end by themselves: clients attach again.
	stop, cancel := context.WithTimeout(context.Background(), closeWithin)
	defer cancel()
	if e := server.Shutdown(stop); e != nil {
		_ = server.Close()
	}
	if within > 0 {
		hibernate(ctx, sandboxes, within, filepath.Join(dir, hostcontrol.StoppedFile), cfg.Log)
	}
	return err
}

// hibernate puts to sleep what runs, and leaves word of it for who has stopped the
// daemon.
func hibernate(ctx context.Context, sandboxes *lifecycle.Sandboxes, within time.Duration, file string, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	report := sandboxes.HibernateAll(ctx)
	log.Info("the daemon ends; sandboxes were hibernated", "count", report.Hibernated)
	for _, l := range report.Lost {
		log.Error("the daemon's end loses something", "sandbox", l.Sandbox, "name", l.Name, "what", l.What)
	}
	if err := writeReport(file, report); err != nil {
		log.Error("what the daemon's end did could not be noted", "error", err)
	}
}

// reportRoom is what is kept for the report of the daemon's end: the disk may be full
// then, and that is when something is lost.
const reportRoom = 64 << 10

// reserveReport makes the report's file, with room in it.
func reserveReport(file string) error {
	if st, err := os.Stat(file); err == nil && st.Size() >= reportRoom {
		return nil
	}
	return os.WriteFile(file, bytes.Repeat([]byte(" "), reportRoom), 0o600)
}

// writeReport writes the report over what is in its file.
func writeReport(file string, report hostcontrol.Stopped) error {
	b, err := json.Marshal(report)
	if err != nil {
		return err
	}
	if n := reportRoom - len(b); n > 0 {
		b = append(b, bytes.Repeat([]byte(" "), n)...)
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Close())
}

// NewServer returns a server of the API for a unix socket: HTTP/2 without TLS
// from the first byte, and HTTP/1.1 for curl.
func NewServer(h http.Handler, log *slog.Logger) *http.Server {
	var p http.Protocols
	p.SetHTTP1(true)
	p.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           h,
		Protocols:         &p,
		ReadHeaderTimeout: 10 * time.Second,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		// A stream whose command does not read its input must not hold up others.
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 4096, MaxReceiveBufferPerConnection: 64 << 20, MaxReceiveBufferPerStream: 256 << 10},
	}
}

// readTag returns the node's tag, which is made at its first start.
func readTag(path string) (string, error) {
	b, err := os.ReadFile(path)
	if err == nil {
		return strings.TrimSpace(string(b)), nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("read tag: %w", err)
	}
	tag := id.NewTag()
	tmp := path + ".new"
	if err := os.WriteFile(tmp, []byte(tag+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("write tag: %w", err)
	}
	return tag, os.Rename(tmp, path)
}

func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}
