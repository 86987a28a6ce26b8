package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/btrfs"
	"github.com/sandtree/sandtree/internal/linux/procmem"
	"github.com/sandtree/sandtree/internal/rootfs/pool"
)

// floors measures raw system calls, on a process with a heap of the same size
// and on a btrfs like a family's pool.
type floors struct {
	cfg    Config
	target *target
	pool   *pool.Pool
	mount  string
	root   *os.File // of the file system
	upper  *os.File // of a subvolume
	into   []byte   // where memory is read to
	turn   int
}

func openFloors(ctx context.Context, cfg Config) (*floors, error) {
	f := &floors{cfg: cfg, into: make([]byte, cfg.Subject.DirtyBytes)}
	for i := 0; i < len(f.into); i += os.Getpagesize() {
		f.into[i] = 1 // warm, as an arena is
	}
	var err error
	if f.target, err = startTarget(cfg.Subject.HeapBytes); err == nil {
		err = f.openPool(ctx)
	}
	if err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

func (f *floors) openPool(ctx context.Context) error {
	f.mount = filepath.Join(f.cfg.Scratch, "mnt")
	if err := os.MkdirAll(f.mount, 0o700); err != nil {
		return err
	}
	var err error
	f.pool, err = pool.Open(ctx, pool.Config{Path: filepath.Join(f.cfg.Scratch, "pool.img"), MountPoint: f.mount, Initial: 512 << 20})
	if err != nil {
		return err
	}
	if f.root, err = os.Open(f.mount); err != nil {
		return err
	}
	r := btrfs.NewRequest(0)
	defer r.Close()
	if err := r.Create(int(f.root.Fd()), "upper"); err != nil {
		return err
	}
	f.upper, err = os.Open(filepath.Join(f.mount, "upper"))
	return err
}

func (f *floors) close() {
	if f.target != nil {
		f.target.close()
	}
	for _, d := range []*os.File{f.upper, f.root} {
		if d != nil {
			_ = d.Close()
		}
	}
	if f.pool != nil {
		_ = f.pool.Close()
	}
}

// exec runs true on this machine.
func (f *floors) exec() (time.Duration, error) { return runTrue(nil) }

// namespaces runs true in namespaces of its own.
func (f *floors) namespaces() (time.Duration, error) {
	return runTrue(&syscall.SysProcAttr{Cloneflags: newNamespaces})
}

const newNamespaces = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS

func runTrue(attr *syscall.SysProcAttr) (time.Duration, error) {
	cmd := exec.Command("true")
	cmd.SysProcAttr = attr
	begin := time.Now()
	err := cmd.Run()
	return time.Since(begin), err
}

// capture reads the dirty bytes out of the target and takes a snapshot of the
// dirty files.
func (f *floors) capture() (time.Duration, error) {
	if err := f.dirty(); err != nil {
		return 0, err
	}
	name := "cp-" + strconv.Itoa(f.turn)
	r := btrfs.NewRequest(0)
	defer r.Close()
	begin := time.Now()
	err := procmem.Read(f.target.pid(), f.target.heap, f.into)
	if err == nil {
		err = r.Snapshot(int(f.upper.Fd()), int(f.root.Fd()), name, true)
	}
	took := time.Since(begin)
	return took, errors.Join(err, btrfs.Destroy(int(f.root.Fd()), name))
}

// restore forks the target and takes a writable snapshot.
func (f *floors) restore() (time.Duration, error) {
	if err := f.dirty(); err != nil {
		return 0, err
	}
	name := "up-" + strconv.Itoa(f.turn)
	r := btrfs.NewRequest(0)
	defer r.Close()
	forked, err := f.target.fork()
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	err = r.Snapshot(int(f.upper.Fd()), int(f.root.Fd()), name, false)
	took := forked + time.Since(begin)
	return took, errors.Join(err, btrfs.Destroy(int(f.root.Fd()), name))
}

// restore100 does so for as many copies as fork_100 makes.
func (f *floors) restore100() (sum time.Duration, err error) {
	for range copies {
		d, err := f.restore()
		if err != nil {
			return 0, err
		}
		sum += d
	}
	return sum, nil
}

// dirty writes as many files as the program in the sandbox does.
func (f *floors) dirty() error {
	f.turn++
	content := make([]byte, 4096)
	for i := range f.cfg.Subject.DirtyFiles {
		content[0] = byte(f.turn)
		if err := os.WriteFile(filepath.Join(f.mount, "upper", strconv.Itoa(i)), content, 0o600); err != nil {
			return fmt.Errorf("dirty a file: %w", err)
		}
	}
	return nil
}
