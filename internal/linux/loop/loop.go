// Package loop attaches regular files as block devices (loop(4)).
package loop

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Options say how a file is attached.
type Options struct {
	// ReadOnly refuses writes.
	ReadOnly bool
	// DirectIO bypasses the page cache of the file's own file system, so that
	// data is not cached twice. Where that file system cannot do it the kernel
	// goes on without.
	DirectIO bool
	// BlockSize is the device's logical block size in bytes; 0 means 512.
	BlockSize uint32
}

// Device is an attached loop device. It detaches itself when the last user,
// a mount or an open descriptor, is gone (LO_FLAGS_AUTOCLEAR), also when this
// process is killed.
type Device struct {
	path string
	f    *os.File
}

// attempts bounds the race for a free device: between asking for a number and
// configuring it another process may take it.
const attempts = 64

// Attach makes file the content of a free loop device (LOOP_CONFIGURE, Linux
// 5.8). The device keeps its own reference to the file.
func Attach(file *os.File, o Options) (*Device, error) {
	ctl, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("attach %s: %w", file.Name(), err)
	}
	defer ctl.Close()
	cfg := unix.LoopConfig{Fd: uint32(file.Fd()), Size: o.BlockSize}
	cfg.Info.Flags = unix.LO_FLAGS_AUTOCLEAR
	if o.ReadOnly {
		cfg.Info.Flags |= unix.LO_FLAGS_READ_ONLY
	}
	if o.DirectIO {
		cfg.Info.Flags |= unix.LO_FLAGS_DIRECT_IO
	}
	copy(cfg.Info.File_name[:len(cfg.Info.File_name)-1], file.Name())
	for range attempts {
		n, err := unix.IoctlRetInt(int(ctl.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("attach %s: find a free loop device: %w", file.Name(), err)
		}
		path := fmt.Sprintf("/dev/loop%d", n)
		dev, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return nil, fmt.Errorf("attach %s: %w", file.Name(), err)
		}
		err = unix.IoctlLoopConfigure(int(dev.Fd()), &cfg)
		if err == nil {
			return &Device{path: path, f: dev}, nil
		}
		dev.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("attach %s to %s: %w", file.Name(), path, err)
		}
	}
	return nil, fmt.Errorf("attach %s: no free loop device in %d attempts: %w", file.Name(), attempts, unix.EBUSY)
}

// Path is the device node, /dev/loopN.
func (d *Device) Path() string { return d.path }

// UpdateSize makes the device as large as its file is now (LOOP_SET_CAPACITY).
func (d *Device) UpdateSize() error {
	if err := unix.IoctlSetInt(int(d.f.Fd()), unix.LOOP_SET_CAPACITY, 0); err != nil {
		return fmt.Errorf("update the size of %s: %w", d.path, err)
	}
	return nil
}

// Close gives up this process's hold; a mount keeps the device attached.
func (d *Device) Close() error { return d.f.Close() }
