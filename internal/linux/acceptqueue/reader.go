package acceptqueue

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

const (
	// license is for the kernel, which lets programs read its memory that may be
	// had under the GPL, too.
	license = "Dual MIT/GPL"
	// mostRead is how much the program copies at once.
	mostRead = 1 << 16
	// mostWalked bounds lists: of connections, and of a connection's buffers.
	mostWalked = 1 << 16
)

// ErrTooMuch is returned if more is unread than the caller wants.
var ErrTooMuch = errors.New("more is unread than was asked for")

// Reader reads the queues of listening sockets. It is safe for use by many
// goroutines, one after another. A nil one reads nothing.
type Reader struct {
	mu      sync.Mutex
	program *ebpf.Program
	value   *ebpf.Map
	memory  []byte // the value, mapped
	at      *layout
	pages   pages
	level   int // of this process's pid namespace
}

// Open makes a Reader. It takes about a tenth of a second. It needs root, the
// kernel's types (CONFIG_DEBUG_INFO_BTF) and leave to read the kernel's memory, which lockdown for
// confidentiality refuses; an error of kind [fault.Unsupported] says what is missing.
func Open() (_ *Reader, err error) {
	r := &Reader{}
	defer func() {
		if err != nil {
			r.Close()
			err = openError(err)
		}
	}()
	if r.at, err = kernelLayout(); err != nil {
		return nil, err
	}
	if err := r.load(); err != nil {
		return nil, err
	}
	if r.level, err = r.ownLevel(); err != nil {
		return nil, err
	}
	return r, r.findPages()
}

// load makes the program and the memory that it copies to.
func (r *Reader) load() (err error) {
	r.value, err = ebpf.NewMap(&ebpf.MapSpec{
		Name: "sandtree_queue", Type: ebpf.Array, KeySize: 4, ValueSize: mostRead, MaxEntries: 1, Flags: unix.BPF_F_MMAPABLE,
	})
	if err != nil {
		return err
	}
	r.memory, err = unix.Mmap(r.value.FD(), 0, mostRead, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("map a BPF map: %w", err)
	}
	// Its context is an address and a length. Address 0 stands for the structure of
	// the calling thread, of which the address is told.
	r.program, err = ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "sandtree_queue", Type: ebpf.RawTracepoint, License: license,
		Instructions: asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.R1),
			asm.FnGetCurrentTask.Call(),
			asm.Mov.Reg(asm.R7, asm.R0),
			asm.LoadMapValue(asm.R1, r.value.FD(), 0),
			asm.LoadMem(asm.R3, asm.R6, 0, asm.DWord),
			asm.LoadMem(asm.R2, asm.R6, 8, asm.DWord),
			asm.JNE.Imm(asm.R3, 0, "copy"),
			asm.StoreMem(asm.R1, 0, asm.R7, asm.DWord),
			asm.Mov.Imm(asm.R0, 0),
			asm.Return(),
			asm.JGT.Imm(asm.R2, mostRead, "no").WithSymbol("copy"),
			asm.FnProbeReadKernel.Call(),
			asm.Return(),
			asm.Mov.Imm(asm.R0, -int32(unix.E2BIG)).WithSymbol("no"),
			asm.Return(),
		},
	})
	return err
}

// openError gives a failure its kind.
func openError(err error) error {
	kind := fault.Internal
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES), errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, fs.ErrNotExist),
		errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOTSUP), errors.Is(err, errNoPages):
		kind = fault.Unsupported
	}
	return fault.New(kind, "read the queues of listening sockets: %w", err)
}

// Close gives it up.
func (r *Reader) Close() {
	if r == nil {
		return
	}
	if r.program != nil {
		_ = r.program.Close()
	}
	if r.value != nil {
		_ = r.value.Close()
	}
	if r.memory != nil {
		_ = unix.Munmap(r.memory)
	}
}

// read copies n bytes from an address.
func (r *Reader) read(address uint64, n int) ([]byte, error) {
	b := make([]byte, n)
	return b, r.readInto(b, address)
}

func (r *Reader) readInto(b []byte, address uint64) error {
	for len(b) > 0 {
		n := min(len(b), mostRead)
		if address < 1<<63 {
			return fmt.Errorf("no address of the kernel: %#x", address)
		}
		if err := runProgram(r.program.FD(), address, uint64(n)); err != nil {
			return fmt.Errorf("read %d bytes at %#x: %w", n, address, err)
		}
		copy(b, r.memory[:n])
		b, address = b[n:], address+uint64(n)
	}
	return nil
}

// pointer reads one.
func (r *Reader) pointer(address uint64) (uint64, error) {
	var b [8]byte
	err := r.readInto(b[:], address)
	return binary.NativeEndian.Uint64(b[:]), err
}

// thread is the address of the calling thread's structure. The goroutine is locked
// to its thread, or it does not matter which of the process it is.
func (r *Reader) thread() (uint64, error) {
	if err := runProgram(r.program.FD(), 0, 0); err != nil {
		return 0, err
	}
	return binary.NativeEndian.Uint64(r.memory), nil
}

// ownLevel is how deep this process's pid namespace is.
func (r *Reader) ownLevel() (int, error) {
	t, err := r.thread()
	if err != nil {
		return 0, err
	}
	pid, err := r.pointer(t + uint64(r.at.taskPID))
	if err != nil {
		return 0, err
	}
	b, err := r.read(pid+uint64(r.at.pidLevel), 4)
	if err != nil {
		return 0, err
	}
	return int(binary.NativeEndian.Uint32(b)), nil
}

// number is a struct pid in the numbers of this process; 0: it has none.
func (r *Reader) number(pid uint64) (int, error) {
	if pid == 0 {
		return 0, nil
	}
	level, err := r.read(pid+uint64(r.at.pidLevel), 4)
	if err != nil || int(binary.NativeEndian.Uint32(level)) < r.level {
		return 0, err
	}
	b, err := r.read(pid+uint64(r.at.pidNumbers+r.level*r.at.upid), 4)
	if err != nil {
		return 0, err
	}
	return int(binary.NativeEndian.Uint32(b)), nil
}

// table is where the open descriptors of the calling thread stand.
func (r *Reader) table() (uint64, error) {
	at, err := r.thread()
	if err != nil {
		return 0, err
	}
	return r.follow(at, r.at.taskFiles, r.at.filesTable, r.at.tableFiles)
}

// follow goes from structure to structure, by the pointers at these offsets.
func (r *Reader) follow(at uint64, offsets ...int) (_ uint64, err error) {
	for _, offset := range offsets {
		if at, err = r.pointer(at + uint64(offset)); err != nil {
			return 0, err
		}
	}
	return at, nil
}

// private is what the kernel has for an open descriptor of the calling thread.
func (r *Reader) private(fd int) (uint64, error) {
	table, err := r.table()
	if err != nil {
		return 0, err
	}
	return r.follow(table, 8*fd, r.at.filePrivate)
}

// sock is a socket's struct sock.
func (r *Reader) sock(fd int) (uint64, error) {
	socket, err := r.private(fd)
	if err != nil {
		return 0, err
	}
	return r.pointer(socket + uint64(r.at.socketSock))
}
