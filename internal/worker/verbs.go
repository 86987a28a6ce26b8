package worker

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/durable"
	"github.com/sandtree/sandtree/internal/failpoint"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/wire"
	"github.com/sandtree/sandtree/internal/worker/control"
)

// The steps of the work that can be made to fail.
var (
	failWrite   = failpoint.New("worker.write.begun")
	failWritten = failpoint.New("worker.write.written")
	failRead    = failpoint.New("worker.read.read")
	failUnpack  = failpoint.New("worker.unpack.unpacked")
	failRemove  = failpoint.New("worker.remove.begun")
)

// verbs returns the mux of a client.
func (w *Worker) verbs() *wire.Mux {
	m := wire.NewMux()
	wire.Handle(m, control.VerbAttach, w.attach)
	wire.Handle(m, control.VerbWrite, w.write)
	wire.Handle(m, control.VerbList, w.list)
	handleAwaited(w, m, control.VerbRead, w.read)
	handleAwaited(w, m, control.VerbUnpack, w.unpack)
	wire.Handle(m, control.VerbRemove, w.remove)
	handleAwaited(w, m, control.VerbVerify, w.verify)
	handleAwaited(w, m, control.VerbExport, w.export)
	handleAwaited(w, m, control.VerbImport, w.importAll)
	return m
}

func (w *Worker) attach(_ context.Context, _ wire.None, files []*os.File) (none wire.None, _ []*os.File, err error) {
	file, err := one(files)
	if err != nil {
		return none, nil, err
	}
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return none, nil, fmt.Errorf("duplicate a descriptor: %w", err)
	}
	g, err := control.OpenGate(os.NewFile(uintptr(fd), "gate"))
	if err != nil {
		return none, nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gate = g // one that was there may be in use; there is one a life of a supervisor
	return none, nil, nil
}

// one is the descriptor of a call that takes one.
func one(files []*os.File) (*os.File, error) {
	if len(files) != 1 {
		return nil, fault.New(fault.Invalid, "the call takes one descriptor, not %d", len(files))
	}
	return files[0], nil
}

func (w *Worker) write(ctx context.Context, _ wire.None, files []*os.File) (durable.Info, []*os.File, error) {
	var k control.Checkpoint
	if err := control.Unpack(files, &k); err != nil {
		return durable.Info{}, nil, err
	}
	defer closeCheckpoint(&k)
	if k.Awaited {
		defer w.awaiting.begin()()
	}
	w.writing.Lock()
	defer w.writing.Unlock()
	if err := failWrite.Hit(); err != nil {
		return durable.Info{}, nil, err
	}
	c := durable.Checkpoint{
		ID: k.ID, Parent: k.Parent, Sandbox: k.Sandbox, Name: k.Name, Created: k.Created, Layers: w.cfg.Layers,
		Tree: k.Tree, Upper: -1, Sections: map[string]any{control.Section: k.State},
	}
	if k.Upper != nil {
		c.Upper = int(k.Upper.Fd())
	}
	for i := range k.Memory {
		m := &k.Memory[i]
		c.Memory = append(c.Memory, durable.Pages{
			PID: m.PID, Full: m.Full, Mapped: m.Mapped, Gone: m.Gone, Changed: m.Changed,
			Source: &source{worker: w, ctx: ctx, windows: m.Windows, file: m.Source},
		})
	}
	info, err := w.repo.Write(ctx, c)
	if err == nil {
		err = failWritten.Hit()
	}
	return info, nil, err
}

func (w *Worker) list(ctx context.Context, _ wire.None, _ []*os.File) (control.ListReply, []*os.File, error) {
	all, err := w.repo.List(ctx)
	r := control.ListReply{Records: all}
	if err != nil && len(all) == 0 {
		return r, nil, err
	}
	if err != nil { // the others are good
		r.Broken = err.Error()
		w.log.Error("a durable checkpoint cannot be read", "error", err)
	}
	return r, nil, nil
}

func (w *Worker) unpack(ctx context.Context, req control.RecordRequest, files []*os.File) (none wire.None, _ []*os.File, err error) {
	dir, err := one(files)
	if err != nil {
		return none, nil, err
	}
	s, err := w.repo.Get(ctx, req.ID)
	if err != nil {
		return none, nil, err
	}
	defer s.Close()
	if err := s.RestoreUpper(ctx, int(dir.Fd())); err != nil {
		return none, nil, err
	}
	return none, nil, failUnpack.Hit()
}

func (w *Worker) remove(_ context.Context, req control.RecordRequest, _ []*os.File) (none wire.None, _ []*os.File, err error) {
	if err := failRemove.Hit(); err != nil {
		return none, nil, err
	}
	if err := w.repo.Remove(req.ID); err != nil {
		return none, nil, err
	}
	w.collect.want()
	return none, nil, nil
}

func (w *Worker) verify(ctx context.Context, req control.RecordsRequest, _ []*os.File) (r control.VerifyReply, _ []*os.File, err error) {
	all, err := w.repo.List(ctx)
	if err != nil {
		w.log.Error("a durable checkpoint cannot be read", "error", err) // it is found again below
	}
	for _, id := range req.IDs { // of several, the repository passes over those that were just removed
		if !slices.ContainsFunc(all, func(i durable.Info) bool { return i.ID == id }) {
			r.Problems = append(r.Problems, durable.Problem{Record: id, What: "its record is not there, or cannot be read"})
		}
	}
	found, err := w.repo.Verify(ctx, req.IDs...)
	r.Problems = append(r.Problems, found...)
	if fault.Is(err, fault.NotFound) && len(r.Problems) > 0 {
		err = nil
	}
	return r, nil, err
}

func (w *Worker) export(ctx context.Context, req control.ExportRequest, files []*os.File) (none wire.None, _ []*os.File, err error) {
	to, err := one(files)
	if err != nil {
		return none, nil, err
	}
	return none, nil, w.repo.Export(ctx, to, durable.ExportOptions{Parents: req.Parents}, req.IDs...)
}

func (w *Worker) importAll(ctx context.Context, req control.ImportRequest, files []*os.File) (r control.ListReply, _ []*os.File, err error) {
	from, err := one(files)
	if err != nil {
		return r, nil, err
	}
	r.Records, err = w.repo.Import(ctx, from, durable.ImportOptions{
		OtherKernel: w.cfg.OtherKernel, Rename: func(id string) string { return newID(req.Salt, id) },
	})
	if err != nil {
		return r, nil, err
	}
	for _, i := range r.Records {
		if slices.Equal(i.Layers, w.cfg.Layers) {
			continue
		}
		err = fault.New(fault.Conflict, "checkpoint %q was made on other layers than the template has", i.Name).
			WithHint("import the same image, make a template of it, and name that one")
		for _, i := range r.Records {
			err = errors.Join(err, w.repo.Remove(i.ID))
		}
		w.collect.want()
		return control.ListReply{}, nil, err
	}
	return r, nil, nil
}

// newID is the id of an imported record: of the form that other checkpoints' have.
func newID(salt, old string) string {
	h := sha256.Sum256([]byte(salt + "\x00" + old))
	return "cp-" + strings.ToLower(base32.StdEncoding.EncodeToString(h[:])[:13])
}

// closeCheckpoint closes the files of a checkpoint that came over the socket.
func closeCheckpoint(k *control.Checkpoint) {
	k.Tree.Close()
	closeState(&k.State)
	closed := map[*os.File]bool{}
	for _, m := range k.Memory {
		if m.Source != nil && !closed[m.Source] {
			closed[m.Source] = true
			_ = m.Source.Close()
		}
	}
	if k.Upper != nil {
		_ = k.Upper.Close()
	}
}
