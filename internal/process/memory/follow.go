package memory

import (
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/pagemap"
	"github.com/sandtree/sandtree/internal/linux/procmem"
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// Follow makes this zygote hold what another one holds, whatever it held. Only
// what differs is touched: mappings, and pages that are not the same physical
// ones in both. The other must not be updated meanwhile. It returns how many
// bytes were copied.
//
// A fork of the other would do the same for less memory. But each fork links
// every mapping to all its living ancestors, so that forks of forks get slower
// with each generation; this zygote stays of its own.
//
// An error leaves the zygote in no usable state: kill it.
func (z *Zygote) Follow(other *Zygote) (copied int64, err error) {
	f := &following{from: other}
	if err := f.run(z); err != nil {
		return 0, fmt.Errorf("bring a zygote to where another one is: %w", err)
	}
	z.layout, z.vmas, z.guards = other.layout.clone(), maps.Clone(other.vmas), maps.Clone(other.guards)
	z.loans, z.borrowed = maps.Clone(other.loans), other.borrowed
	return int64(f.copy.size()), nil
}

// following is one Follow under way. Both zygotes are taken for one process
// that stands in place, at the addresses that things have in the zygotes.
type following struct {
	from       *Zygote
	have, want []image.VMA
	kept       spans // of have, what stays mapped
	copy       spans // pages that come from the other
	drop       spans // pages that only this one has
	guards     [2]spans
	runs       []Run
}

// whole is the number of the one process that both are taken for.
const whole = 1

func (f *following) run(z *Zygote) (err error) {
	if f.have, err = z.raw(); err != nil {
		return err
	}
	if f.want, err = f.from.raw(); err != nil {
		return err
	}
	f.guards = [2]spans{z.rawGuards(), f.from.rawGuards()}
	var kept []span
	for i := range f.have {
		kept = append(kept, keptParts(&f.have[i], true, f.want)...)
	}
	f.kept = makeSpans(kept)
	if err := f.compare(z); err != nil {
		return err
	}
	f.makeRuns()

	open, err := f.from.rawFiles()
	if err != nil {
		return err
	}
	u := &update{
		z: &Zygote{
			server: z.server, layout: &layout{inPlace: whole, extents: map[int][]extent{whole: inPlace(f.have)}},
			vmas: map[int][]image.VMA{whole: f.have}, guards: map[int]guards{whole: guards(f.guards[0].and(f.kept))}, loans: map[int][]loan{},
		},
		open: open, batch: tracee.NewBatch(), opened: map[span]bool{}, mem: -1, dense: dense{},
	}
	defer u.closeFiles()
	d := &Delta{PID: whole, VMAs: f.want, Runs: f.runs}
	if err := u.mappings(d); err != nil {
		return err
	}
	if err := u.prepareRuns(d); err != nil {
		return err
	}
	// A page of a window that borrows the others must not fill a huge one.
	lends := len(f.from.loans) > 0
	if lends {
		if err := u.hugePages(false); err != nil {
			return err
		}
	}
	if err := u.flush(); err != nil {
		return err
	}
	if err := f.transfer(z); err != nil {
		return err
	}
	if lends {
		if err := u.hugePages(true); err != nil {
			return err
		}
	}
	return u.finish()
}

// inPlace is where mappings stand that stand where they belong.
func inPlace(vmas []image.VMA) []extent {
	out := needed(vmas)
	for i := range out {
		out[i].at = out[i].start
	}
	return out
}

// raw are the mappings of all processes as they stand in the zygote, by address.
// A file's path is what tells it from others.
func (z *Zygote) raw() ([]image.VMA, error) {
	actual, err := z.actual()
	if err != nil {
		return nil, err
	}
	var out []image.VMA
	names := map[uint64]string{} // by start of the actual mapping
	for pid, vmas := range z.vmas {
		for _, v := range vmas {
			to := z.layout.park(pid, v.Start)
			v.Start, v.End, v.Fresh = to, to+v.Len(), false
			if v.Kind == image.FileBacked {
				a := Find(actual, v.Start)
				if a == nil {
					return nil, fmt.Errorf("the zygote has no mapping at %#x", v.Start)
				}
				if names[a.Start] == "" {
					var st unix.Stat_t
					if err := unix.Stat(z.mapFile(a), &st); err != nil {
						return nil, fmt.Errorf("stat %s: %w", z.mapFile(a), err)
					}
					names[a.Start] = fmt.Sprintf("%x:%x", st.Dev, st.Ino)
				}
				v.Path, v.Deleted = names[a.Start], false
			}
			out = append(out, v)
		}
	}
	slices.SortFunc(out, func(a, b image.VMA) int {
		if a.Start < b.Start {
			return -1
		}
		return 1
	})
	return out, nil
}

// actual are the zygote's mappings as the kernel has them, which joins neighbours.
func (z *Zygote) actual() ([]image.VMA, error) {
	return ReadMaps(z.server.PID())
}

func (z *Zygote) mapFile(v *image.VMA) string {
	return fmt.Sprintf("/proc/%d/map_files/%x-%x", z.server.PID(), v.Start, v.End)
}

// rawFiles opens the files of the zygote's own mappings.
func (z *Zygote) rawFiles() (Backing, error) {
	actual, err := z.actual()
	if err != nil {
		return nil, err
	}
	return func(_ int, v *image.VMA) (int, error) {
		a := Find(actual, v.Start)
		if a == nil {
			return -1, fmt.Errorf("the zygote has no mapping at %#x", v.Start)
		}
		fd, err := unix.Open(z.mapFile(a), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return -1, fmt.Errorf("open %s: %w", z.mapFile(a), err)
		}
		return fd, nil
	}, nil
}

// rawGuards are the guard pages of all processes as they stand in the zygote.
func (z *Zygote) rawGuards() spans {
	var out []span
	for pid := range z.guards {
		z.Guards(pid, func(start, end uint64) {
			at := z.layout.park(pid, start)
			out = append(out, span{at, at + end - start})
		})
	}
	return makeSpans(out)
}

// compare finds the pages that differ.
func (f *following) compare(z *Zygote) error {
	var fds [2]int
	for i, x := range []*Zygote{z, f.from} {
		path := fmt.Sprintf("/proc/%d/pagemap", x.server.PID())
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open %s: %w", path, err)
		}
		defer unix.Close(fd)
		fds[i] = fd
	}
	var mine, theirs []span
	var err error
	for i := range f.want {
		if theirs, err = ownPages(fds[1], &f.want[i], theirs); err != nil {
			return err
		}
	}
	for i := range f.have {
		if mine, err = ownPages(fds[0], &f.have[i], mine); err != nil {
			return err
		}
	}
	m := makeSpans(mine).and(f.kept).less(f.guards[0])
	t := makeSpans(theirs).less(f.guards[1])
	same, err := samePages(fds[0], fds[1], m.and(t))
	if err != nil {
		return err
	}
	f.copy, f.drop = t.less(same), m.less(t)
	return nil
}

// ownPages appends the runs of a mapping's pages that are no file's.
func ownPages(fd int, v *image.VMA, out []span) ([]span, error) {
	queries := []pagemap.Query{{Mask: pagemap.Present}, {Mask: pagemap.Swapped}}
	if v.Kind == image.FileBacked {
		queries = []pagemap.Query{askPresent, askSwapped}
	}
	buf := make([]pagemap.Region, 512)
	for _, q := range queries {
		e := pagemap.Scan(fd, v.Start, v.End, q, buf, func(r pagemap.Region) { out = append(out, span{r.Start, r.End}) })
		if e != 0 {
			return nil, fmt.Errorf("scan pages of a zygote: %w", e)
		}
	}
	return out, nil
}

// samePages are those of some pages that are the same physical ones in two
// processes. The kernel may move pages meanwhile, and give a place that one
// process's had to the other's: so the first is asked before and after the second.
func samePages(a, b int, in spans) (spans, error) {
	var out []span
	var before, other, after [4096]uint64
	for _, s := range in {
		for at := s.start; at < s.end; {
			n := min(int((s.end-at)/pageSize), len(before))
			for _, x := range []struct {
				fd  int
				out []uint64
			}{{a, before[:n]}, {b, other[:n]}, {a, after[:n]}} {
				if err := pagemap.Entries(x.fd, at, x.out); err != nil {
					return nil, err
				}
			}
			for i := range n {
				p := pagemap.Frame(before[i]) // none, of swapped ones: they are copied
				if p == 0 || p != pagemap.Frame(other[i]) || p != pagemap.Frame(after[i]) {
					continue
				}
				from := at + uint64(i)*pageSize
				if k := len(out); k > 0 && out[k-1].end == from {
					out[k-1].end += pageSize
				} else {
					out = append(out, span{from, from + pageSize})
				}
			}
			at += uint64(n) * pageSize
		}
	}
	return makeSpans(out), nil
}

// makeRuns lists what changes.
func (f *following) makeRuns() {
	for _, s := range f.copy {
		f.runs = append(f.runs, Run{Start: s.start, End: s.end, Data: wanted})
	}
	install := f.guards[1].less(f.guards[0].and(f.kept))
	for _, s := range install {
		f.runs = append(f.runs, Run{Start: s.start, End: s.end, Guard: true})
	}
	// A guard goes where there is a run.
	left := f.guards[0].and(f.kept).less(f.guards[1]).less(f.copy)
	for _, s := range makeSpans(append(slices.Clone(f.drop.less(install)), left...)) {
		f.runs = append(f.runs, Run{Start: s.start, End: s.end})
	}
	slices.SortFunc(f.runs, func(a, b Run) int {
		if a.Start < b.Start {
			return -1
		}
		return 1
	})
}

// transferBytes is how much is copied at a time.
const transferBytes = 1 << 20

// transfer copies the pages that come from the other zygote.
func (f *following) transfer(z *Zygote) error {
	if len(f.copy) == 0 {
		return nil
	}
	from, err := f.from.OpenMemory()
	if err != nil {
		return err
	}
	defer from.Close()
	buf, err := unix.Mmap(-1, 0, transferBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("map a buffer: %w", err)
	}
	defer func() { _ = unix.Munmap(buf) }()
	var local [512]unix.Iovec
	var remote [512]procmem.Span
	n, used := 0, 0
	flush := func() error {
		if n == 0 {
			return nil
		}
		got, e := procmem.WriteV(z.server.PID(), local[:n], remote[:n])
		if e != 0 || got != used {
			return fmt.Errorf("write %d bytes into a zygote: only %d: %w", used, got, e)
		}
		n, used = 0, 0
		return nil
	}
	for _, s := range f.copy {
		for at := s.start; at < s.end; {
			if n == len(local) || used == len(buf) {
				if err := flush(); err != nil {
					return err
				}
			}
			b := buf[used:min(uint64(len(buf)), uint64(used)+s.end-at)]
			if k, err := from.ReadAt(b, int64(at)); k != len(b) {
				return fmt.Errorf("read %#x of a zygote: %d of %d bytes: %w", at, k, len(b), err)
			}
			local[n] = unix.Iovec{Base: &b[0], Len: uint64(len(b))}
			remote[n] = procmem.Span{Addr: at, Len: uint64(len(b))}
			n, used, at = n+1, used+len(b), at+uint64(len(b))
		}
	}
	return flush()
}
