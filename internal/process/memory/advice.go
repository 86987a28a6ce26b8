package memory

import (
	"bytes"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// Prepare reads the advice on mappings, which /proc/PID/smaps alone tells, at
// the price of ten readings of maps, and for a large heap of a hundred. Called before the
// stop, it spares the time then, if no mapping changes meanwhile. It does nothing if none has
// changed since it was read, and does not even look if soon says that the last stop was just
// before, and none had changed then.
//
// Programs give their advice right after they map something, which a stop may have come
// between: so where one was new at the last stop, and had not just grown, it is read once more.
func (t *Tracker) Prepare(soon bool) error {
	if soon && t.steady > 1 {
		return nil
	}
	n, err := t.readMaps()
	if err != nil || n == 0 {
		return err
	}
	if bytes.Equal(t.text[:n], t.advised) {
		if !t.unadvised {
			return nil
		}
		t.unadvised = false
	}
	return t.readAdvice(t.text[:n])
}

// anyNew reports whether a mapping begins where none did before. Both lists are in order.
func anyNew(before, now []image.VMA) bool {
	for i := range now {
		for len(before) > 0 && before[0].Start < now[i].Start {
			before = before[1:]
		}
		if len(before) == 0 || before[0].Start > now[i].Start {
			return true
		}
	}
	return false
}

// advise gives the mappings their advice, and finds out which are tracked.
func (t *Tracker) advise() error {
	if !bytes.Equal(t.last, t.advised) {
		if err := t.readAdvice(t.last); err != nil {
			return err
		}
	}
	for i := range t.vmas {
		t.vmas[i].Advice = t.advice[t.vmas[i].Start]
	}
	t.readvised = false
	t.tracked = runs(t.vmas)
	t.groups = groups(t.tracked, t.vmas)
	t.keepCopies()
	return nil
}

func (t *Tracker) readAdvice(text []byte) error {
	smaps, err := readFile(t.host, "smaps")
	if err != nil {
		return err
	}
	advice, err := parseAdvice(smaps)
	if err != nil {
		return fmt.Errorf("process %d: %w", t.pid, err)
	}
	t.advice, t.advised, t.readvised = advice, append(t.advised[:0], text...), true
	return nil
}

var (
	vmFlags = []byte("VmFlags:")
	keyLine = []byte("ProtectionKey:") // where the processor has some
	flags   = map[string]image.Advice{
		"wf": image.WipeOnFork, "dd": image.DontDump, "dc": image.DontFork, "lo": image.Locked,
		"hg": image.HugePage, "nh": image.NoHugePage, "dp": image.Droppable,
		"lf": image.LockedOnFault, "sr": image.Sequential, "rr": image.Random, "sh": image.MayWrite, "gd": image.GrowsDown, "mg": image.Mergeable, "sl": image.Sealed,
		"ht": image.Reserved,
	}
)

// parseAdvice parses the text of /proc/PID/smaps (proc_pid_smaps(5)) and
// returns the advice of mappings that have some, by their start. The kernel's
// own mappings are left out.
func parseAdvice(text []byte) (map[uint64]image.Advice, error) {
	out := map[uint64]image.Advice{}
	var now image.VMA
	for len(text) > 0 {
		line, rest, _ := bytes.Cut(text, []byte{'\n'})
		text = rest
		if i := bytes.IndexAny(line, " :"); i > 0 && line[i] == ' ' { // no key: a line of maps
			v, err := parseLine(line)
			if err != nil {
				return nil, fmt.Errorf("smaps: %q: %w", line, err)
			}
			now = v
			continue
		}
		if bytes.HasPrefix(line, keyLine) && !bytes.Equal(bytes.TrimSpace(line[len(keyLine):]), []byte("0")) {
			out[now.Start] |= image.Keyed
			continue
		}
		if !bytes.HasPrefix(line, vmFlags) || now.Kind == image.VDSO {
			continue
		}
		var a image.Advice
		for _, f := range bytes.Fields(line[len(vmFlags):]) {
			a |= flags[string(f)]
		}
		if a != 0 {
			out[now.Start] |= a
		}
	}
	return out, nil
}

// Settle queues what a mapping is told in the restored process itself, when it
// stands where it belongs: what fork does not keep. A shared mapping, which is
// mapped anew, is told all of it.
func Settle(b *tracee.Batch, v *image.VMA) {
	if v.Shared {
		for _, a := range lasting {
			if v.Advice&a.bit != 0 {
				b.Call(unix.SYS_MADVISE, v.Start, v.Len(), a.on)
			}
		}
	}
	if v.Advice&image.Mergeable != 0 { // not of the zygote's own pages; another kernel may have no KSM
		b.Try(unix.SYS_MADVISE, v.Start, v.Len(), unix.MADV_MERGEABLE)
	}
	if v.Advice&image.DontFork != 0 {
		b.Call(unix.SYS_MADVISE, v.Start, v.Len(), unix.MADV_DONTFORK)
	}
	if v.Advice&image.Locked != 0 {
		b.Call(unix.SYS_MLOCK2, v.Start, v.Len(), unix.MLOCK_ONFAULT)
		if v.Advice&image.LockedOnFault == 0 {
			// It locks all the same where there is nothing to bring into memory:
			// that nobody may access, guard pages, what is behind a file's end.
			b.Try(unix.SYS_MLOCK, v.Start, v.Len())
		}
	}
	if v.Advice&image.Sealed != 0 { // the last: nothing can change it any more
		b.Call(unix.SYS_MSEAL, v.Start, v.Len(), 0)
	}
}

// lasting is the advice that a fork keeps, with the calls that give it and take
// it back; 0 if none does.
var lasting = []struct {
	bit     image.Advice
	on, off int
}{
	{image.WipeOnFork, unix.MADV_WIPEONFORK, unix.MADV_KEEPONFORK},
	{image.DontDump, unix.MADV_DONTDUMP, unix.MADV_DODUMP},
	{image.HugePage, unix.MADV_HUGEPAGE, 0},
	{image.NoHugePage, unix.MADV_NOHUGEPAGE, 0},
	{image.Sequential, unix.MADV_SEQUENTIAL, unix.MADV_NORMAL},
	{image.Random, unix.MADV_RANDOM, unix.MADV_NORMAL},
}
