package control

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// Ledger is memory that all supervisors of a daemon share: what the checkpoints
// of each family take, so that one budget holds for all of them, and who is to
// give something up when it is exceeded. The host makes it.
type Ledger struct {
	file  *os.File
	bytes []byte
	head  *ledgerHead
	rows  []ledgerRow
}

type ledgerHead struct {
	changes atomic.Uint32 // a futex(2)
	most    atomic.Uint32 // rows that were ever used are below it
	_       [24]byte
}

// ledgerRow is a family's.
type ledgerRow struct {
	bytes  atomic.Int64
	oldest atomic.Int64
	busy   atomic.Int64
	_      [8]byte
}

// ledgerRows is how many families there can be: more than there are ranges of ids.
const ledgerRows = 1 << 15

const ledgerSize = int(unsafe.Sizeof(ledgerHead{}) + ledgerRows*unsafe.Sizeof(ledgerRow{}))

// NewLedger makes a ledger of no families.
func NewLedger() (*Ledger, error) {
	fd, err := unix.MemfdCreate("ledger", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "ledger")
	if err := f.Truncate(int64(ledgerSize)); err != nil {
		_ = f.Close()
		return nil, err
	}
	return OpenLedger(f)
}

// OpenLedger opens the ledger that another process has made. The file belongs to it
// from now on, whatever it returns.
func OpenLedger(f *os.File) (*Ledger, error) {
	st, err := f.Stat()
	if err == nil && st.Size() < int64(ledgerSize) { // it would be SIGBUS
		err = fault.New(fault.Invalid, "a ledger of %d bytes", st.Size())
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	b, err := unix.Mmap(int(f.Fd()), 0, ledgerSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("map a ledger: %w", err)
	}
	head := unsafe.Sizeof(ledgerHead{})
	return &Ledger{
		file: f, bytes: b, head: (*ledgerHead)(unsafe.Pointer(&b[0])),
		rows: unsafe.Slice((*ledgerRow)(unsafe.Pointer(&b[head])), ledgerRows),
	}, nil
}

// File is what [OpenLedger] takes in another process. It stays the ledger's.
func (l *Ledger) File() *os.File { return l.file }

// Close unmaps the ledger, which nobody may use any more.
func (l *Ledger) Close() {
	_ = unix.Munmap(l.bytes)
	_ = l.file.Close()
}

// Account is one family's part of a ledger.
type Account struct {
	ledger *Ledger
	row    *ledgerRow
}

// Account is that of a row, from 0 on, which only one family may have.
func (l *Ledger) Account(row int) (*Account, error) {
	if row < 0 || row >= ledgerRows {
		return nil, fault.New(fault.Invalid, "row %d of a ledger", row)
	}
	for {
		most := l.head.most.Load()
		if most > uint32(row) || l.head.most.CompareAndSwap(most, uint32(row)+1) { //nolint:gosec // checked above
			return &Account{l, &l.rows[row]}, nil
		}
	}
}

// used are the rows that may have something.
func (l *Ledger) used() []ledgerRow { return l.rows[:min(l.head.most.Load(), ledgerRows)] }

// Total is what all families' checkpoints take, in bytes.
func (l *Ledger) Total() (n int64) {
	rows := l.used()
	for i := range rows {
		n += rows[i].bytes.Load()
	}
	return n
}

// Busy reports whether some family is giving something up.
func (l *Ledger) Busy() bool {
	rows := l.used()
	for i := range rows {
		if rows[i].busy.Load() != 0 {
			return true
		}
	}
	return false
}

// Never is an [Account.Set] oldest of a family that has nothing to give up.
const Never = math.MaxInt64

// Set notes what the family's checkpoints take, and when the one was used, in
// nanoseconds since 1970, that it would give up first.
func (a *Account) Set(bytes, oldest int64) {
	a.row.oldest.Store(oldest)
	a.row.bytes.Store(bytes)
}

// SetOldest notes the second alone.
func (a *Account) SetOldest(oldest int64) { a.row.oldest.Store(oldest) }

// SetBusy notes that the family is giving something up.
func (a *Account) SetBusy(busy bool) {
	n := int64(0)
	if busy {
		n = 1
	}
	a.row.busy.Store(n)
}

// Turn reports whether the family is the one that is to give something up.
func (a *Account) Turn() bool {
	oldest := a.row.oldest.Load()
	return oldest != Never && a.Oldest(oldest)
}

// Oldest reports whether no other family has something that was used longer ago.
func (a *Account) Oldest(used int64) bool {
	rows := a.ledger.used()
	for i := range rows {
		if r := &rows[i]; r != a.row && r.bytes.Load() > 0 && r.oldest.Load() < used {
			return false
		}
	}
	return true
}

// Clear takes out what a family had that has ended.
func (a *Account) Clear() {
	a.Set(0, Never)
	a.SetBusy(false)
	a.ledger.Call()
}

// Changes counts calls, for [Ledger.Await].
func (l *Ledger) Changes() uint32 { return l.head.changes.Load() }

// Call wakes all who wait.
func (l *Ledger) Call() {
	l.head.changes.Add(1)
	const wake = 1 // FUTEX_WAKE, not private: they are in other processes
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&l.head.changes)), wake, math.MaxInt32, 0, 0, 0)
}

// Await waits for a call after those that were counted.
func (l *Ledger) Await(changes uint32) {
	for l.head.changes.Load() == changes {
		const wait = 0 // FUTEX_WAIT
		_, _, e := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(&l.head.changes)), wait, uintptr(changes), 0, 0, 0)
		if e != 0 && !errors.Is(e, unix.EINTR) && !errors.Is(e, unix.EAGAIN) {
			return
		}
	}
}
