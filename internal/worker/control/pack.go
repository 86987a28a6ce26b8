package control

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/durable/cbor"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/wire"
)

// ErrTooManyFiles is the cause when a checkpoint has more files in memory than one
// message carries: it can never be written.
var ErrTooManyFiles = fmt.Errorf("it has more than %d files in memory", wire.MaxFiles-1)

// pack makes a value one of descriptors: the first is a file of memory with its
// encoding, in which a file has the number of its descriptor. The files are
// duplicates and the caller's to close.
func pack(v any) (_ []*os.File, err error) {
	fd, err := unix.MemfdCreate("checkpoint", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	files := []*os.File{os.NewFile(uintptr(fd), "checkpoint")}
	defer func() {
		if err != nil {
			closeAll(files)
		}
	}()
	known := map[int]uint64{}
	data, err := cbor.MarshalFiles(v, cbor.Files{Put: func(fd int) (uint64, error) {
		if n, ok := known[fd]; ok {
			return n, nil
		}
		if len(files) == wire.MaxFiles {
			return 0, fault.New(fault.Exhausted, "%w: deleted ones that are open, and those in /dev/shm", ErrTooManyFiles)
		}
		dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return 0, fmt.Errorf("duplicate a descriptor: %w", err)
		}
		n := uint64(len(files))
		known[fd] = n
		files = append(files, os.NewFile(uintptr(dup), "file"))
		return n, nil
	}})
	if err != nil {
		return nil, err
	}
	if _, err := files[0].Write(data); err != nil {
		return nil, fmt.Errorf("write a file of memory: %w", err)
	}
	return files, nil
}

// Unpack takes apart what pack made. The files in the value are duplicates and
// belong to it; on an error there are none.
func Unpack(files []*os.File, into any) error {
	if len(files) == 0 {
		return fault.New(fault.Invalid, "a packed value has no descriptor")
	}
	data, err := io.ReadAll(io.NewSectionReader(files[0], 0, 1<<40))
	if err != nil {
		return fmt.Errorf("read a file of memory: %w", err)
	}
	return cbor.UnmarshalFiles(data, into, cbor.Files{Get: func(n uint64) (int, error) {
		if n == 0 || n >= uint64(len(files)) {
			return -1, fault.New(fault.Invalid, "file %d of %d", n, len(files))
		}
		fd, err := unix.FcntlInt(files[n].Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return -1, fmt.Errorf("duplicate a descriptor: %w", err)
		}
		return fd, nil
	}})
}

// Pack is for replies: see [Unpack].
func Pack(v any) ([]*os.File, error) { return pack(v) }

func closeAll(files []*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}
