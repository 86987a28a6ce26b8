package node_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

func (l *local) Checkpoint(_ context.Context, req control.CheckpointRequest) (control.Checkpoint, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, err := l.box(req.Sandbox)
	if err != nil {
		return control.Checkpoint{}, err
	}
	if _, err := os.Stat(filepath.Join(l.dir, req.Sandbox, "uncapturable")); err == nil {
		return control.Checkpoint{}, fault.New(fault.Uncapturable, "process 7, descriptor 3: an io_uring")
	}
	c := control.Checkpoint{ID: req.Checkpoint, Name: req.Name, Sandbox: req.Sandbox, Parent: b.At, Created: time.Now(), Processes: 1}
	b.tree = append(b.tree, c)
	b.At = c.ID
	b.saved[c.ID] = []*proc{}
	for _, p := range b.sessions {
		if !p.Ended {
			b.saved[c.ID] = append(b.saved[c.ID], p)
		}
	}
	return c, nil
}

func (l *local) CheckpointRemove(_ context.Context, req control.CheckpointRef) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, err := l.box(req.Sandbox)
	if err != nil {
		return err
	}
	b.tree = slices.DeleteFunc(b.tree, func(c control.Checkpoint) bool { return c.ID == req.Checkpoint })
	delete(b.saved, req.Checkpoint)
	return nil
}

func (l *local) Tree(_ context.Context, req control.SandboxRequest) (control.TreeReply, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, err := l.box(req.Sandbox)
	if err != nil {
		return control.TreeReply{}, err
	}
	return control.TreeReply{Sandbox: b.ID, At: b.At, Checkpoints: slices.Clone(b.tree)}, nil
}

func (l *local) Rollback(_ context.Context, req control.CheckpointRef) (control.Rebirth, []*os.File, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, err := l.box(req.Sandbox)
	if err != nil {
		return control.Rebirth{}, nil, err
	}
	saved, ok := b.saved[req.Checkpoint]
	if !ok {
		return control.Rebirth{}, nil, fault.New(fault.NotFound, "no checkpoint %s", req.Checkpoint)
	}
	for _, p := range b.sessions {
		p.end()
	}
	b.sessions = map[string]*proc{}
	b.Generation++
	b.At, b.Alive = req.Checkpoint, true
	for _, p := range saved {
		if _, err := l.spawn(b, p.req); err != nil {
			return control.Rebirth{}, nil, err
		}
	}
	r := control.Rebirth{Sandbox: b.describe(), ElapsedNS: 1}
	var files []*os.File
	for _, s := range r.Sandbox.Sessions {
		files = append(files, b.sessions[s.ID].copies()...)
	}
	return r, files, nil
}

// Standby keeps nothing ready: bodies are directories here.
func (l *local) Standby(_ context.Context, req control.StandbyRequest) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := l.box(req.Sandbox)
	return err
}

func (l *local) Fork(_ context.Context, req control.ForkRequest) (r control.ForkReply, files []*os.File, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	src, err := l.box(req.From.Sandbox)
	if err != nil {
		return r, nil, err
	}
	for _, c := range src.tree {
		if c.ID == req.From.Checkpoint {
			r.Checkpoint = c
		}
	}
	for i, id := range req.Sandboxes {
		b := l.newBox(id, src.Hostname)
		b.Resources = src.Resources
		if req.Resources != nil {
			b.Resources = *req.Resources
		}
		if err := os.CopyFS(filepath.Join(l.dir, id), os.DirFS(filepath.Join(l.dir, src.ID))); err != nil {
			return r, nil, err
		}
		for _, p := range src.saved[req.From.Checkpoint] {
			req := p.req
			req.Sandbox = id
			if _, err := l.spawn(b, req); err != nil {
				return r, nil, err
			}
		}
		r.Sandboxes = append(r.Sandboxes, b.describe())
		// Of every other copy the descriptors are to be fetched.
		r.Files = append(r.Files, 0)
		for _, s := range r.Sandboxes[i].Sessions {
			if i%2 == 0 && !s.Ended {
				copies := b.sessions[s.ID].copies()
				files = append(files, copies...)
				r.Files[i] += len(copies)
			}
		}
		r.ElapsedNS = append(r.ElapsedNS, 1)
	}
	return r, files, nil
}
