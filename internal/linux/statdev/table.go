package statdev

import (
	"errors"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

const (
	// firstShown is the first minor number that is shown, under major number 0.
	// The kernel gives the lowest that is free (get_anon_bdev in fs/super.c), and so
	// reaches it with a million mounts.
	firstShown = 0xff000
	// Numbers is how many different ones can be shown.
	Numbers = 0x1000
)

// key of the map: a file system and who sees it.
type key struct {
	Device uint32 // minor number; the major one is 0
	Range  uint32 // user id without its lower bits
}

// Table is a family's part of the map. Its methods are safe for concurrent use.
// A nil Table is one without an attachment: all of it does nothing.
type Table struct {
	users uint32
	table *ebpf.Map
	held  []int // links, for as long as the table is open

	mu      sync.Mutex
	entries map[uint32]*entry // by device
}

// entry is a device in the map. Some are in the view of many sandboxes.
type entry struct {
	shown  uint32
	claims int
}

// OpenTable opens the part of the users from base on, by the files of an [Attachment]. It
// owns the descriptors, also after an error.
func OpenTable(fds []int, base uint32) (_ *Table, err error) {
	t := &Table{users: base >> rangeBits, held: fds, entries: map[uint32]*entry{}}
	defer func() {
		if err != nil {
			t.Close()
		}
	}()
	if len(fds) == 0 || t.users == 0 {
		return nil, fault.New(fault.Invalid, "device numbers: %d descriptors, users from %#x on", len(fds), base)
	}
	t.held = fds[1:]
	if t.table, err = ebpf.NewMapFromFD(fds[0]); err != nil {
		return nil, fault.New(fault.Invalid, "device numbers: descriptor %d: %w", fds[0], err)
	}
	return t, nil
}

// Claim is what a sandbox shows. Release ends it.
type Claim struct {
	table   *Table
	entries map[uint32]*entry
}

// Claim shows number, one of 0 to [Numbers]-1, for a device, as st_dev has it. A device
// that the claim has already keeps its number. Where another claim has it with another
// number, that one is void from then on: its mount is gone, and its device
// was given again. Devices with a driver are left as they are. On an error the claim
// has nothing new.
func (t *Table) Claim(c *Claim, device uint64, number int) error {
	if t == nil || unix.Major(device) != 0 {
		return nil
	}
	if number < 0 || number >= Numbers {
		return fault.New(fault.Internal, "there is no device number %d to show", number)
	}
	d, shown := unix.Minor(device), firstShown+uint32(number)
	t.mu.Lock()
	defer t.mu.Unlock()
	if c.table == nil {
		c.table, c.entries = t, map[uint32]*entry{}
	}
	e := t.entries[d]
	if e != nil && c.entries[d] == e {
		return nil
	}
	if e == nil || e.shown != shown {
		if err := t.table.Put(key{d, t.users}, shown); err != nil {
			kind := fault.Internal
			if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOMEM) {
				kind = fault.Exhausted
			}
			return fault.New(kind, "show a device number: %w", err)
		}
		e = &entry{shown: shown}
		t.entries[d] = e
	}
	e.claims++
	c.entries[d] = e
	return nil
}

// Release ends the claim. It comes when nothing runs any more that could ask.
func (c *Claim) Release() error {
	t := c.table
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for d, e := range c.entries {
		e.claims--
		if e.claims > 0 || t.entries[d] != e {
			continue
		}
		delete(t.entries, d)
		if err := t.table.Delete(key{d, t.users}); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, fault.New(fault.Internal, "show a device number no longer: %w", err))
		}
	}
	c.table, c.entries = nil, nil
	return errors.Join(errs...)
}

// Len is how many devices are claimed.
func (t *Table) Len() int {
	if t == nil {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.entries)
}

// Close gives up the descriptors. What is claimed stays in the map.
func (t *Table) Close() {
	if t == nil {
		return
	}
	for _, fd := range t.held {
		unix.Close(fd)
	}
	t.held = nil
	if t.table != nil {
		_ = t.table.Close()
	}
}
