package memory

import (
	"errors"
	"fmt"
	"slices"
	"sort"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/procmem"
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// Update brings the zygote up to date with one checkpoint: mappings first, then
// pages, then protections. Deltas stand for all processes that the zygote is to
// hold from now on; others leave it.
//
// An error leaves the zygote in no usable state: kill it.
func (z *Zygote) Update(deltas []*Delta, open Backing) error {
	u := &update{z: z, open: open, batch: tracee.NewBatch(), opened: map[span]bool{}, mem: -1, dense: dense{}}
	defer u.closeFiles()
	err := u.run(deltas)
	if e := u.closeMemory(); err == nil {
		err = e
	}
	if errors.Is(err, unix.ENOMEM) { // one process holds what all of them map
		return fault.New(fault.Uncapturable, "the %d processes that began in one session have more mappings together than one process may have: %w", len(deltas), err).
			WithHint("raise vm.max_map_count on this machine, or end some of them")
	}
	if err != nil {
		return fmt.Errorf("bring a zygote up to date: %w", err)
	}
	return nil
}

// update is one Update under way.
type update struct {
	z      *Zygote
	open   Backing
	batch  *tracee.Batch
	sent   []int // descriptors that go with the batch, received first
	opened map[span]bool
	mem    int          // /proc/PID/mem, once it was needed; else -1
	after  []protection // to be set when the pages are in
	dense  dense        // parked ranges that are worth huge pages
}

type protection struct {
	span
	prot int
}

func (u *update) run(deltas []*Delta) error {
	z := u.z
	deltas = slices.Clone(deltas)
	for i, d := range deltas {
		deltas[i] = z.thin(d)
	}
	if err := u.settle(deltas); err != nil {
		return err
	}
	now := make(map[int]bool, len(deltas))
	for _, d := range deltas {
		now[d.PID] = true
	}
	for pid, vmas := range z.vmas {
		if now[pid] {
			continue
		}
		for i := range vmas {
			if err := u.call(unix.SYS_MUNMAP, z.layout.park(pid, vmas[i].Start), vmas[i].Len()); err != nil {
				return err
			}
		}
		delete(z.vmas, pid)
		delete(z.guards, pid)
		delete(z.layout.extents, pid)
		if z.layout.inPlace == pid {
			z.layout.inPlace = 0
		}
	}
	// The process with the most mappings stands in place, if none does yet: one
	// that borrows nothing, since its window stands where its lender's would go.
	sort.SliceStable(deltas, func(i, j int) bool {
		if a, b := deltas[i].borrows(), deltas[j].borrows(); a != b {
			return b
		}
		return len(deltas[i].VMAs) > len(deltas[j].VMAs)
	})
	for _, d := range deltas {
		if err := u.mappings(d); err != nil {
			return err
		}
	}
	for _, d := range deltas {
		if err := u.prepareRuns(d); err != nil {
			return err
		}
	}
	if err := u.flush(); err != nil {
		return err
	}
	if err := u.store(deltas); err != nil {
		return err
	}
	u.lend(deltas)
	if err := u.arrange(); err != nil {
		return err
	}
	return u.finish()
}

// finish sets the protections, now that the pages are in, and makes huge pages.
func (u *update) finish() error {
	for _, p := range u.after {
		if err := u.call(unix.SYS_MPROTECT, p.start, p.end-p.start, p.prot); err != nil {
			return err
		}
	}
	for _, s := range u.dense.worth() { // only a matter of speed
		b, err := u.room()
		if err != nil {
			return err
		}
		b.Try(unix.SYS_MADVISE, s.start, s.end-s.start, unix.MADV_COLLAPSE)
	}
	return u.flush()
}

// call queues a call, running what is queued if there is no room.
func (u *update) call(nr int, args ...any) error {
	if u.batch.Full(8, 64) {
		if err := u.flush(); err != nil {
			return err
		}
	}
	u.batch.Call(nr, args...)
	return nil
}

func (u *update) flush() error {
	if u.batch.Len() == 0 {
		return nil
	}
	if n := len(u.sent); n > 0 {
		// Files arrive by a batch of their own, since which are needed is
		// known only when the other is complete.
		receive := tracee.NewBatch()
		receive.Call(unix.SYS_CLOSE_RANGE, 0, tracee.ControlFD-1, 0) // what a batch that failed has left
		receive.ReceiveFDs(n)
		if err := u.z.server.Do(receive, u.sent...); err != nil {
			return err
		}
		u.batch.Call(unix.SYS_CLOSE_RANGE, 0, n-1, 0)
	}
	err := u.z.server.Do(u.batch)
	u.closeFiles()
	u.batch = tracee.NewBatch()
	return err
}

// maxFiles is how many files go with one batch: fewer than would reach the
// numbers of the stub's own descriptors.
const maxFiles = 90

func (u *update) closeFiles() {
	for _, fd := range u.sent {
		_ = unix.Close(fd)
	}
	u.sent = nil
}

// prepareRuns drops pages that are gone and makes writable what pages are to
// be written to.
func (u *update) prepareRuns(d *Delta) error {
	shares := d.borrows() || u.z.loans[d.PID] != nil
	for i := range d.Runs {
		r := &d.Runs[i]
		for at := r.Start; at < r.End; {
			v := Find(d.VMAs, at)
			if v == nil {
				return fmt.Errorf("page %#x of process %d is in no mapping", at, d.PID)
			}
			end := min(r.End, v.End)
			to := u.z.layout.park(d.PID, at)
			if err := u.guard(d.PID, r, at, end, to); err != nil {
				return err
			}
			switch whole := (span{u.z.layout.park(d.PID, v.Start), u.z.layout.park(d.PID, v.Start) + v.Len()}); {
			case r.Guard:
			case r.Data == nil:
				if err := u.call(unix.SYS_MADVISE, to, end-at, unix.MADV_DONTNEED); err != nil {
					return err
				}
			case v.Prot&(unix.PROT_READ|unix.PROT_WRITE) != unix.PROT_READ|unix.PROT_WRITE && !u.opened[whole]:
				u.opened[whole] = true
				if err := u.call(unix.SYS_MPROTECT, whole.start, v.Len(), unix.PROT_READ|unix.PROT_WRITE); err != nil {
					return err
				}
				u.after = append(u.after, protection{whole, v.Prot})
			}
			if r.Data != nil && v.Kind == image.Anonymous && !shares {
				u.dense.note(span{to, to + end - at}, u.z.layout.park(d.PID, v.Start), v.Len())
			}
			at = end
		}
	}
	return nil
}

// store writes the pages of all deltas: first those of processes that share
// nothing, whose memory may be in huge pages. In the window of one that borrows,
// a few own pages would fill them.
func (u *update) store(deltas []*Delta) error {
	borrows := func(d *Delta) bool { return d.borrows() || u.z.loans[d.PID] != nil }
	for _, d := range deltas {
		if !borrows(d) {
			if err := u.z.write(d); err != nil {
				return err
			}
		}
	}
	for _, d := range deltas {
		if borrows(d) && len(d.Runs) > 0 {
			if err := u.openMemory(); err != nil {
				return err
			}
			if err := u.z.write(d); err != nil {
				return err
			}
		}
	}
	return nil
}

// write stores the pages of the runs.
func (z *Zygote) write(d *Delta) error {
	var local [512]unix.Iovec
	var remote [512]procmem.Span
	n, sum := 0, 0
	flush := func() error {
		if n == 0 {
			return nil
		}
		got, e := procmem.WriteV(z.server.PID(), local[:n], remote[:n])
		if e != 0 || got != sum {
			return fmt.Errorf("write %d bytes of process %d into its zygote: only %d: %w", sum, d.PID, got, e)
		}
		n, sum = 0, 0
		return nil
	}
	for i := range d.Runs {
		r := &d.Runs[i]
		for at := uint64(0); at < uint64(len(r.Data)); {
			v := Find(d.VMAs, r.Start+at)
			l := min(uint64(len(r.Data))-at, v.End-r.Start-at)
			local[n] = unix.Iovec{Base: &r.Data[at], Len: l}
			remote[n] = procmem.Span{Addr: z.layout.park(d.PID, r.Start+at), Len: l}
			sum += int(l)
			at += l
			if n++; n == len(local) {
				if err := flush(); err != nil {
					return err
				}
			}
		}
	}
	return flush()
}
