package descriptor

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// examineLocks finds the locks that were taken through captured descriptors. It
// asks the fdinfo of each: reading /proc/locks makes the kernel wait for a grace
// period of RCU, 10 ms and more.
func (c *Capturer) examineLocks() error {
	owned := make([]bool, len(c.descriptions)) // whose own locks are known
	for p := range c.tables {
		if err := c.locksOf(p, owned); err != nil {
			return err
		}
	}
	return nil
}

// locksOf finds those of one process.
func (c *Capturer) locksOf(p int, owned []bool) (err error) {
	info := -1 // its directory fdinfo: going by that spares most of the lookup of each
	defer func() {
		if info >= 0 {
			_ = unix.Close(info)
		}
	}()
	done := map[int]bool{} // descriptions, in this process
	for i := range c.tables[p] {
		t := &c.tables[p][i]
		d := &c.descriptions[t.File]
		if !c.lockable(d) || done[t.File] {
			continue
		}
		done[t.File] = true
		if info < 0 {
			info, err = unix.Open("/proc/"+strconv.Itoa(c.procs[p].HostPID)+"/fdinfo", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		}
		var text []byte
		if err == nil {
			text, err = c.infoIn(info, t.Number)
		}
		if err != nil {
			return fmt.Errorf("fdinfo of descriptor %d of process %d: %w", t.Number, c.procs[p].PID, err)
		}
		locks, strange := parseLocks(text)
		if strange != "" {
			at := *d
			at.proc, at.num = p, t.Number
			return c.refuse(&at, fmt.Sprintf("the file %s with a lock (%s)", d.file.Path, strange), "release the lock or end the process")
		}
		for _, l := range locks {
			switch {
			case l.Kind == image.POSIX: // the process's
				t.Locks = append(t.Locks, l)
			case !owned[t.File]:
				d.file.Locks = append(d.file.Locks, l)
			}
		}
		owned[t.File] = true
	}
	return nil
}

func (c *Capturer) lockable(d *description) bool {
	if d.flags&unix.O_PATH != 0 {
		return false
	}
	switch d.kind.name() {
	case image.Regular, image.Directory, image.FIFO, image.Memfd:
		return true
	}
	return false
}

// parseLocks takes the locks from the text of an fdinfo, whose lines are those
// of /proc/locks (proc_locks(5)), such as
// "lock:	1: POSIX  ADVISORY  WRITE 4321 00:2b:17 128 127". strange is the text
// of a lock that cannot be kept: one that is being broken, or of a kind that is
// not known.
func parseLocks(text []byte) (locks []image.Lock, strange string) {
	for line := range bytes.Lines(text) {
		rest, ok := bytes.CutPrefix(line, []byte("lock:"))
		if !ok {
			continue
		}
		l, ok := parseLock(bytes.Fields(rest))
		if !ok {
			return nil, string(bytes.Join(bytes.Fields(rest), []byte{' '}))
		}
		locks = append(locks, l)
	}
	return locks, ""
}

var lockKinds = map[string]image.LockKind{
	"FLOCK ADVISORY": image.Flock, "POSIX ADVISORY": image.POSIX, "OFDLCK ADVISORY": image.OFD, "LEASE ACTIVE": image.Lease,
}

func parseLock(f [][]byte) (l image.Lock, ok bool) {
	if len(f) != 8 {
		return l, false
	}
	if l.Kind, ok = lockKinds[string(f[1])+" "+string(f[2])]; !ok {
		return l, false
	}
	switch string(f[3]) {
	case "WRITE":
		l.Write = true
	case "READ":
	default:
		return l, false
	}
	var err error
	if l.Start, err = strconv.ParseInt(string(f[6]), 10, 64); err != nil || l.Start < 0 {
		return l, false
	}
	if string(f[7]) == "EOF" {
		return l, true
	}
	end, err := strconv.ParseInt(string(f[7]), 10, 64)
	l.Length = end - l.Start + 1
	return l, err == nil && l.Length > 0
}

// locks queues the locks of a process, and of a description that no process
// before has locked. Nothing of the batch may close a file after that: closing
// any descriptor of a file gives up a process's own locks of it.
func (w *completion) locks() error {
	for _, d := range w.Table {
		for _, l := range d.Locks {
			if err := w.room(); err != nil {
				return err
			}
			w.lock(d.Number, l)
		}
		if w.locked[d.File] {
			continue
		}
		w.locked[d.File] = true
		for _, l := range w.files[d.File].Locks {
			if err := w.room(); err != nil {
				return err
			}
			w.lock(d.Number, l)
		}
	}
	return nil
}

func (w *completion) lock(number int, l image.Lock) { queueLock(w.Batch, number, l) }

// queueLock queues that a process takes a lock by a descriptor: a number or a result.
func queueLock(b *tracee.Batch, number any, l image.Lock) {
	typ := uint16(unix.F_RDLCK)
	if l.Write {
		typ = unix.F_WRLCK
	}
	command := unix.F_SETLK
	switch l.Kind {
	case image.Lease: // taken from outside, see seal
		return
	case image.Flock:
		how := unix.LOCK_SH
		if l.Write {
			how = unix.LOCK_EX
		}
		b.Call(unix.SYS_FLOCK, number, how|unix.LOCK_NB)
		return
	case image.OFD:
		command = unix.F_OFD_SETLK
	}
	// struct flock: type, whence, start, length, pid.
	f := binary.LittleEndian.AppendUint16(nil, typ)
	f = append(f, make([]byte, 6)...)
	f = binary.LittleEndian.AppendUint64(f, uint64(l.Start))
	f = binary.LittleEndian.AppendUint64(f, uint64(l.Length))
	f = append(f, make([]byte, 8)...)
	b.Call(unix.SYS_FCNTL, number, command, b.Put(f))
}

// lease takes the leases of a description. The kernel wants the owner of the
// file for that, or rights over all files, which this process has; who gets
// their signals is set later, see owner.
func (o *Opened) lease(i int) error {
	for _, l := range o.files[i].Locks {
		if l.Kind != image.Lease {
			continue
		}
		typ := unix.F_RDLCK
		if l.Write {
			typ = unix.F_WRLCK
		}
		if _, err := unix.FcntlInt(uintptr(o.fd[i]), unix.F_SETLEASE, typ); err != nil {
			return fmt.Errorf("lease of %s: %w", o.files[i].Path, err)
		}
		if _, err := unix.FcntlInt(uintptr(o.fd[i]), unix.F_SETOWN, 0); err != nil {
			return fmt.Errorf("owner of the lease of %s: %w", o.files[i].Path, err)
		}
	}
	return nil
}
