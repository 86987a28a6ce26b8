package wire

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

const (
	// maxCalls bounds the calls of one client that run at a time.
	maxCalls = 1024
	// maxNotices bounds the events that a client has not taken yet; one that
	// lets more gather is cut off, so that it cannot hold up the others.
	maxNotices = 4096
)

// Peer is the serving side of a connection: one client.
type Peer struct {
	sock    *socket
	mux     *Mux
	log     *slog.Logger
	notices *queue[*message]

	mu    sync.Mutex
	calls map[uint64]context.CancelFunc
	wg    sync.WaitGroup
}

// NewPeer makes a peer of a socket, which belongs to it from now on. It serves
// nothing before [Peer.Serve].
func NewPeer(sock *net.UnixConn, mux *Mux, log *slog.Logger) *Peer {
	return &Peer{
		sock:    newSocket(sock),
		mux:     mux,
		log:     log,
		notices: newQueue[*message](maxNotices),
		calls:   map[uint64]context.CancelFunc{},
	}
}

// Serve serves the client until it is gone, which is no error, or ctx ends.
// It returns when all handlers have returned.
func (p *Peer) Serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(ctx, func() { p.sock.Close() })
	p.wg.Go(p.notify)
	defer func() {
		cancel()
		stop()
		p.sock.Close()
		p.notices.end()
		p.wg.Wait()
	}()
	r := newReader(p.sock)
	for {
		f, err := r.next()
		switch {
		case err == nil:
			p.accept(ctx, f)
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed), errors.Is(err, unix.ECONNRESET):
			return nil
		default:
			return fmt.Errorf("serve client: %w", err)
		}
	}
}

// Notify sends an event. It never waits: a client that does not take its
// events is cut off. It returns false if the client is gone or was cut off.
func (p *Peer) Notify(event string, v any) bool {
	data, err := json.Marshal(v)
	if err != nil {
		p.log.Error("encode event", "event", event, "error", err)
		return false
	}
	if !p.notices.put(&message{Event: event, Data: data}) {
		p.sock.Close()
		return false
	}
	return true
}

// Close cuts the client off; Serve then returns.
func (p *Peer) Close() { p.sock.Close() }

// notify sends the events, apart from everybody who reports one.
func (p *Peer) notify() {
	for {
		m, ok := p.notices.get()
		if !ok {
			return
		}
		if fatal, err := p.sock.send(nil, m, nil); err != nil {
			if fatal {
				p.sock.Close()
				return
			}
			p.log.Error("send event", "event", m.Event, "error", err)
		}
	}
}

// accept starts a call or ends one. A refusal is sent from here: a client that
// takes no replies stops being read instead of piling them up.
func (p *Peer) accept(ctx context.Context, f *frame) {
	if f.Cancel {
		p.mu.Lock()
		if cancel, ok := p.calls[f.ID]; ok {
			cancel()
		}
		p.mu.Unlock()
		f.close()
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	h, err := p.admit(f, cancel)
	if err != nil {
		cancel()
		f.close()
		p.reply(f.ID, nil, nil, err)
		return
	}
	p.wg.Go(func() {
		result, files, err := p.run(ctx, h, f)
		p.mu.Lock()
		delete(p.calls, f.ID)
		p.mu.Unlock()
		cancel()
		p.reply(f.ID, result, files, err)
	})
}

// admit registers a call and returns its handler.
func (p *Peer) admit(f *frame, cancel context.CancelFunc) (Handler, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h, known := p.mux.handlers[f.Verb]
	_, twice := p.calls[f.ID]
	switch {
	case f.damage != nil:
		return nil, f.damage
	case !known:
		return nil, fault.New(fault.Unsupported, "verb %q is not known here", f.Verb).
			WithHint("the two processes are of different versions of sandtree")
	case twice:
		return nil, fault.New(fault.Invalid, "call %d is running already", f.ID)
	case len(p.calls) >= maxCalls:
		return nil, fault.New(fault.Exhausted, "%s: %d calls are running already", f.Verb, maxCalls)
	}
	p.calls[f.ID] = cancel
	return h, nil
}

// run calls the handler. A panic ends the call, not the process: the other
// sandboxes of this family have nothing to do with it.
func (p *Peer) run(ctx context.Context, h Handler, f *frame) (result any, files []*os.File, err error) {
	defer f.close()
	defer func() {
		if v := recover(); v != nil {
			p.log.Error("panic in a handler", "verb", f.Verb, "panic", v, "stack", string(debug.Stack()))
			err = fault.New(fault.Internal, "%s: panic: %v", f.Verb, v)
		}
	}()
	return h(ctx, f.Data, f.files)
}

// reply sends a call's outcome and closes files.
func (p *Peer) reply(id uint64, result any, files []*os.File, err error) {
	defer closeAll(files)
	m := &message{ID: id}
	if err == nil {
		m.Data, err = json.Marshal(result)
	}
	if err != nil {
		m.Data, m.Error = nil, failureOf(err)
	}
	sent := files
	if m.Error != nil {
		sent = nil
	}
	fatal, err := p.sock.send(nil, m, sent)
	if err != nil && !fatal {
		// The result does not fit into a message; the caller must hear that.
		fatal, err = p.sock.send(nil, &message{ID: id, Error: failureOf(err)}, nil)
	}
	if err != nil {
		if !fatal {
			p.log.Error("send reply", "error", err)
		}
		p.sock.Close()
	}
}
