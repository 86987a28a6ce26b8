package worker

import (
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/sandtree/sandtree/internal/durable"
	"github.com/sandtree/sandtree/internal/durable/machine"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/wire"
	"github.com/sandtree/sandtree/internal/worker/control"
)

// read reads a record but for its files, which unpack does. Pages go into one
// file of memory that the supervisor maps.
func (w *Worker) read(ctx context.Context, req control.RecordRequest, _ []*os.File) (none wire.None, files []*os.File, err error) {
	var s control.Stored
	defer func() {
		s.Tree.Close()
		closeState(&s.State)
		if s.Pages != nil {
			_ = s.Pages.Close()
		}
	}()
	if err := w.readRecord(ctx, req.ID, &s); err != nil {
		return none, nil, err
	}
	if err := failRead.Hit(); err != nil {
		return none, nil, err
	}
	files, err = control.Pack(s)
	return none, files, err
}

func (w *Worker) readRecord(ctx context.Context, id string, s *control.Stored) error {
	r, err := w.repo.Get(ctx, id)
	if err != nil {
		return err
	}
	defer r.Close()
	s.Info = r.Info()
	here, err := machine.Here()
	if err == nil {
		err = s.Info.Machine.Check(here, machine.Options{OtherKernel: w.cfg.OtherKernel})
	}
	if err != nil {
		return fmt.Errorf("checkpoint %s: %w", id, err)
	}
	if s.Tree, err = r.Tree(ctx); err != nil {
		return err
	}
	if s.Tree == nil {
		return fault.New(fault.Invalid, "checkpoint %s has no processes", id)
	}
	if err := r.Section(ctx, control.Section, &s.State); err != nil {
		return err
	}
	pids := r.PIDs()
	p, err := newPageFile(len(pids))
	if err != nil {
		return err
	}
	s.Pages = p.file
	for _, pid := range pids {
		if err := r.Pages(ctx, pid, func(run durable.Run) error { return p.add(pid, run) }); err != nil {
			return err
		}
	}
	s.Runs = p.runs
	return s.Pages.Truncate(p.size)
}

func closeState(s *control.State) {
	for _, f := range slices.Concat(s.Shm, s.Dev) {
		if f.Data != nil {
			_ = f.Data.Close()
		}
	}
	for _, b := range s.Backings {
		if b.File != nil {
			_ = b.File.Close()
		}
	}
}
