package memory

import (
	"fmt"
	"slices"
	"sort"

	"golang.org/x/sys/unix"

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

// mappings makes the mappings of one process those of the delta, keeping the
// pages of those that are still the same.
func (u *update) mappings(d *Delta) error {
	z := u.z
	old := z.vmas[d.PID]
	if d.Full && old != nil {
		for i := range old {
			if err := u.call(unix.SYS_MUNMAP, z.layout.park(d.PID, old[i].Start), old[i].Len()); err != nil {
				return err
			}
		}
		delete(z.layout.extents, d.PID)
		delete(z.guards, d.PID)
		old = nil
	}
	// Parts that are gone leave before their windows may be given away.
	for i := range old {
		o := &old[i]
		for _, g := range gaps(o, d.VMAs) {
			if err := u.call(unix.SYS_MUNMAP, z.layout.park(d.PID, g.start), g.end-g.start); err != nil {
				return err
			}
		}
	}
	if err := u.relocate(d, old); err != nil {
		return err
	}
	kept := make([]image.VMA, 0, len(d.VMAs))
	for i := range d.VMAs {
		v := &d.VMAs[i]
		if v.Kind == image.VDSO {
			continue
		}
		kept = append(kept, *v)
		if v.Shared {
			continue
		}
		if err := u.mapping(d.PID, v, old); err != nil {
			return err
		}
	}
	// Shared mappings are made at restore: they have no place here.
	z.vmas[d.PID] = withoutShared(kept)
	return nil
}

func withoutShared(vmas []image.VMA) []image.VMA {
	out := vmas[:0]
	for _, v := range vmas {
		if !v.Shared {
			out = append(out, v)
		}
	}
	return out
}

// keeps reports whether pages of o at some place may stay for v. A tracked mapping that is not
// fresh is the one that stood there at the last scan, with the same file: that may have been renamed or
// deleted since, and its path be another file's.
func keeps(o, v *image.VMA) bool {
	if v.Fresh {
		return false
	}
	if Tracks(o) && Tracks(v) && o.Kind == image.FileBacked && v.Kind == image.FileBacked {
		return o.Offset-o.Start == v.Offset-v.Start
	}
	return sameBacking(o, v)
}

// gaps are the parts of an old mapping that no new one keeps.
func gaps(o *image.VMA, vmas []image.VMA) (out []span) {
	at := o.Start
	vmas = overlapping(vmas, span{o.Start, o.End})
	for i := range vmas {
		v := &vmas[i]
		if v.End <= at || !keeps(o, v) {
			continue
		}
		if v.Start > at {
			out = append(out, span{at, v.Start})
		}
		at = min(v.End, o.End)
	}
	if at < o.End {
		out = append(out, span{at, o.End})
	}
	return out
}

// relocate finds a place for all mappings, and moves what is in the way.
func (u *update) relocate(d *Delta, old []image.VMA) error {
	private := make([]image.VMA, 0, len(d.VMAs))
	for _, v := range d.VMAs {
		if !v.Shared {
			private = append(private, v)
		}
	}
	moves, err := u.z.layout.fit(d.PID, private)
	if err != nil {
		return err
	}
	for _, m := range moves {
		vmas := u.z.vmas[m.pid]
		if m.pid == d.PID {
			vmas = old
		}
		for i := range vmas {
			for _, k := range keptParts(&vmas[i], m.pid == d.PID, d.VMAs) {
				if k.start < max(m.old.start, m.new.start) || k.start >= min(m.old.end, m.new.end) {
					continue
				}
				l := k.end - k.start
				if err := u.call(unix.SYS_MREMAP, m.old.at+k.start-m.old.start, l, l,
					unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, m.new.at+k.start-m.new.start); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// keptParts is what is still there of an old mapping after its gaps left.
func keptParts(o *image.VMA, changed bool, vmas []image.VMA) []span {
	if !changed {
		return []span{{o.Start, o.End}}
	}
	var out []span
	at := o.Start
	for _, g := range gaps(o, vmas) {
		if g.start > at {
			out = append(out, span{at, g.start})
		}
		at = g.end
	}
	if at < o.End {
		out = append(out, span{at, o.End})
	}
	return out
}

// mapping makes the parts of one mapping that are new, and sets the protection
// of those that are kept.
func (u *update) mapping(pid int, v *image.VMA, old []image.VMA) error {
	at := v.Start
	if !v.Fresh {
		old = overlapping(old, span{v.Start, v.End})
		for i := range old {
			o := &old[i]
			if !keeps(o, v) {
				continue
			}
			if o.Start > at {
				if err := u.add(pid, v, at, o.Start); err != nil {
					return err
				}
			}
			s := max(o.Start, at)
			at = min(o.End, v.End)
			if o.Advice != v.Advice {
				if err := u.advise(u.z.layout.park(pid, s), at-s, o.Advice, v.Advice); err != nil {
					return err
				}
			}
			if o.Prot != v.Prot {
				if err := u.call(unix.SYS_MPROTECT, u.z.layout.park(pid, s), at-s, v.Prot); err != nil {
					return err
				}
			}
		}
	}
	if at < v.End {
		return u.add(pid, v, at, v.End)
	}
	return nil
}

// add maps a part of a mapping anew.
func (u *update) add(pid int, v *image.VMA, start, end uint64) error {
	to := u.z.layout.park(pid, start)
	flags := unix.MAP_PRIVATE | unix.MAP_FIXED
	switch v.Kind { // the place is free, or what stood there is left behind
	case image.FileBacked:
		fd, err := u.open(pid, v)
		if err != nil {
			return err
		}
		if len(u.sent) == maxFiles || u.batch.Full(8, 64) {
			if err := u.flush(); err != nil {
				_ = unix.Close(fd)
				return err
			}
		}
		if err := u.mapFile(fd, to, end-start, v.Prot, flags, v.Offset+start-v.Start); err != nil {
			return err
		}
		return u.advise(to, end-start, 0, v.Advice)
	case image.Stack:
		return u.call(unix.SYS_MMAP, to, end-start, v.Prot, flags|unix.MAP_ANONYMOUS|unix.MAP_GROWSDOWN, -1, 0)
	}
	flags |= unix.MAP_ANONYMOUS | unix.MAP_NORESERVE
	if v.Advice&image.GrowsDown != 0 {
		flags |= unix.MAP_GROWSDOWN
	}
	if v.Advice&image.Droppable != 0 {
		const mapDroppable = 0x08
		flags = flags&^unix.MAP_TYPE | mapDroppable
	}
	if err := u.call(unix.SYS_MMAP, to, end-start, v.Prot, flags, -1, 0); err != nil {
		return err
	}
	return u.advise(to, end-start, 0, v.Advice)
}

// advise gives a mapping the advice that survives the zygote's forks. A fork
// wipes memory that is to be wiped, so that a restored process finds it zero.
func (u *update) advise(at, size uint64, old, now image.Advice) error {
	for _, a := range lasting {
		what := a.on
		switch {
		case (old^now)&a.bit == 0 || now&image.Droppable != 0 && a.bit&(image.WipeOnFork|image.DontDump) != 0: // which it always is
			continue
		case now&a.bit == 0:
			what = a.off
		}
		if what == 0 || what == unix.MADV_NORMAL && now&(image.Sequential|image.Random) != 0 {
			continue // no call takes it back, or another one replaces it
		}
		if err := u.call(unix.SYS_MADVISE, at, size, what); err != nil {
			return err
		}
	}
	return nil
}

// mapFile queues the mapping of a file of ours, whose descriptor it takes over.
// Sent files have the numbers 0, 1, … in the zygote.
func (u *update) mapFile(fd int, to, size uint64, prot, flags int, offset uint64) error {
	u.sent = append(u.sent, fd)
	return u.call(unix.SYS_MMAP, to, size, prot, flags, len(u.sent)-1, offset)
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
