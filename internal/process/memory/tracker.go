package memory

import (
	"bytes"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/pagemap"
	"github.com/sandtree/sandtree/internal/linux/uffd"
	"github.com/sandtree/sandtree/internal/process/image"
)

// Tracker follows the private memory of one live process from checkpoint to
// checkpoint.
type Tracker struct {
	host, pid int // in our numbers, and inside
	maps      int // descriptors of /proc/PID/...
	pagemap   int
	mem       int
	uffd      int // -1 before Attach

	text, last []byte // of maps: now, and at the last scan
	vmas       []image.VMA
	tracked    []area   // runs of adjacent mappings that are tracked
	groups     [][]area // of them, those between which no other mapping is
	protected  []area   // those that Protect has begun to track
	pieces     pieces   // of large mappings
	copies     spans    // the process's own pages in mappings of files, as of the last scan
	full       bool     // the next scan takes everything
	ahead      []Run    // what was copied since the last scan
	found      uint64   // how many bytes the last scan found, with what was copied ahead
	steady     int      // at how many stops the mappings were the same, one after another
	advised    []byte   // the text of maps that advice belongs to
	advice     map[uint64]image.Advice
	readvised  bool // it was read since the mappings were given it
	unadvised  bool // a mapping was new at the last stop, and its advice may have come since
	scratch    *Scratch
	origins    *Origins // nil: every file is one of the live incarnation
}

// Scratch is memory that trackers of one thread share.
type Scratch struct {
	regions []pagemap.Region
	local   [512]unix.Iovec
	remote  [512]remoteSpan
	frames  [2][4096]uint64
}

// NewScratch makes the scratch memory of one thread.
func NewScratch() *Scratch { return &Scratch{regions: make([]pagemap.Region, 1<<14)} }

// NewTracker starts to follow a process, given by its number in our pid
// namespace and inside. The first scan takes all its pages.
func NewTracker(host, pid int, s *Scratch) (*Tracker, error) {
	t := &Tracker{host: host, pid: pid, maps: -1, pagemap: -1, mem: -1, uffd: -1, full: true, scratch: s, text: make([]byte, 1<<16)}
	if err := t.open(); err != nil {
		return nil, err
	}
	return t, nil
}

func (t *Tracker) open() error {
	for _, f := range []struct {
		fd   *int
		name string
	}{{&t.maps, "maps"}, {&t.pagemap, "pagemap"}, {&t.mem, "mem"}} {
		path := fmt.Sprintf("/proc/%d/%s", t.host, f.name)
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open %s: %w", path, err)
		}
		*f.fd = fd
	}
	return nil
}

// Reopen begins anew, in the memory that the process has now. Open files of
// /proc stay with the memory that they were opened in: while another process has
// that, too, as after vfork(2), Refresh does not notice an execve.
func (t *Tracker) Reopen() error {
	t.Close()
	t.Forget()
	return t.open()
}

// Via tells by the number of which thread the process is reached from now on.
func (t *Tracker) Via(tid int) { t.host = tid }

// UseScratch gives the tracker the scratch memory of the thread that uses it from now on.
func (t *Tracker) UseScratch(s *Scratch) { t.scratch = s }

// UseOrigins tells what the files of restored processes are. It must be called
// before the first Refresh.
func (t *Tracker) UseOrigins(o *Origins) { t.origins = o }

// Close ends the following. The process is not changed by it: write tracking
// ends with the last descriptor.
func (t *Tracker) Close() {
	for _, fd := range []*int{&t.maps, &t.pagemap, &t.mem, &t.uffd} {
		if *fd >= 0 {
			_ = unix.Close(*fd)
			*fd = -1
		}
	}
}

// Attach gives the tracker the userfaultfd that the process made by an
// injected userfaultfd([uffd.Flags]) and that was then taken from it. It belongs
// to the tracker whatever Attach returns.
func (t *Tracker) Attach(fd int) error {
	if err := uffd.Enable(fd); err != nil {
		_ = unix.Close(fd)
		return fmt.Errorf("track writes of process %d: %w", t.pid, err)
	}
	t.uffd = fd
	return nil
}

// Attached reports whether the process has a userfaultfd of ours. It has none
// at first, and after it executed another program.
func (t *Tracker) Attached() bool { return t.uffd >= 0 }

// Refresh reads the mappings anew, in the stopped process. It must be called
// before everything else of a checkpoint. It notices an execve(2): open files
// of /proc stay with the old memory and give nothing.
func (t *Tracker) Refresh() error {
	n, err := t.readMaps()
	if err != nil {
		return err
	}
	if n == 0 {
		if err := t.Reopen(); err != nil {
			return err
		}
		if n, err = t.readMaps(); err != nil {
			return err
		}
	}
	uncertain := bytes.Contains(t.text[:n], newline)
	if bytes.Equal(t.text[:n], t.last) {
		t.steady++
		switch {
		case uncertain: // another name may look the same
		case t.readvised:
			return t.advise()
		default:
			return nil
		}
	} else {
		t.steady = 0
	}
	vmas, err := ParseMaps(t.text[:n])
	if err != nil {
		return fmt.Errorf("process %d: %w", t.pid, err)
	}
	if uncertain {
		if err := readNames(t.host, vmas); err != nil {
			return fmt.Errorf("process %d: %w", t.pid, err)
		}
	}
	return t.take(vmas, n)
}

// take makes mappings the tracker's, which were parsed from the first n bytes of text.
func (t *Tracker) take(vmas []image.VMA, n int) error {
	for i := range vmas {
		t.origins.apply(&vmas[i])
	}
	t.unadvised = t.unadvised || anyNew(t.vmas, vmas)
	t.vmas, t.last = vmas, append(t.last[:0], t.text[:n]...)
	return t.advise()
}

// area is a range of tracked mappings of one kind.
type area struct {
	span
	file bool // private mappings of files
}

func areaOf(v *image.VMA) area {
	return area{span{v.Start, v.End}, v.Kind == image.FileBacked || v.Kind == image.SharedAnonymous}
}

// runs are the runs of adjacent mappings that are tracked as a whole.
func runs(vmas []image.VMA) (out []area) {
	for i := range vmas {
		v := &vmas[i]
		if !Tracks(v) || large(v) {
			continue
		}
		a := areaOf(v)
		if k := len(out); k > 0 && out[k-1].end == v.Start && out[k-1].file == a.file {
			out[k-1].end = v.End
		} else {
			out = append(out, a)
		}
	}
	return out
}

// readMaps fills text and returns the length.
func (t *Tracker) readMaps() (int, error) {
	at := 0
	for {
		if at == len(t.text) {
			t.text = append(t.text, make([]byte, len(t.text))...)
		}
		n, err := unix.Pread(t.maps, t.text[at:], int64(at))
		if err == unix.EINTR {
			continue
		}
		if err == unix.ESRCH || err == nil && n == 0 {
			return at, nil
		}
		if err != nil {
			return 0, fmt.Errorf("read mappings of process %d: %w", t.pid, err)
		}
		at += n
	}
}

// VMAs are the mappings as of the last Refresh. They belong to the tracker.
func (t *Tracker) VMAs() []image.VMA { return t.vmas }

// Text is the raw text of the mappings as of the last Refresh.
func (t *Tracker) Text() []byte { return t.last }

// Forget makes the next scan take all pages.
func (t *Tracker) Forget() { t.full, t.ahead = true, nil }

// Tracks reports whether writes to a mapping are tracked: all private ones but
// those that nobody may access. Those stay untracked since registered ones grow
// page tables, and are looked through page by page.
func Tracks(v *image.VMA) bool { return captured(v) && v.Prot != 0 }

// untracked reports whether a private mapping is looked through instead.
func untracked(v *image.VMA) bool { return captured(v) && !Tracks(v) }

// captured reports whether a mapping has pages that a checkpoint keeps as the
// process's own.
func captured(v *image.VMA) bool {
	return v.Kind != image.VDSO && !v.Shared && v.Advice&image.Droppable == 0
}
