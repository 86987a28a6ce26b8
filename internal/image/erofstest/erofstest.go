// Package erofstest helps tests to look at EROFS images with the kernel's
// eyes: it mounts them, and compares trees file by file.
package erofstest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Mount mounts an image for the time of the test and returns the directory. It
// mounts from the file, or from a loop device where the kernel is older than
// 6.12. Without root the test is skipped, for mounting is not to be had then.
func Mount(t testing.TB, image string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	err := unix.Mount(image, dir, "erofs", unix.MS_RDONLY, "")
	if errors.Is(err, unix.ENOTBLK) {
		err = mountLoop(image, dir)
	}
	if err != nil {
		t.Fatalf("mount %s: %v", image, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

// MountLoop mounts like [Mount], always from a loop device.
func MountLoop(t testing.TB, image string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	if err := mountLoop(image, dir); err != nil {
		t.Fatalf("mount %s: %v", image, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

// mountLoop mounts through a loop device that goes away with the mount.
func mountLoop(image, dir string) error {
	ctl, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer ctl.Close()
	back, err := os.Open(image)
	if err != nil {
		return err
	}
	defer back.Close()
	for range 20 { // another process may take the free one first
		n, err := unix.IoctlRetInt(int(ctl.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return fmt.Errorf("LOOP_CTL_GET_FREE: %w", err)
		}
		name := fmt.Sprintf("/dev/loop%d", n)
		dev, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		config := unix.LoopConfig{Fd: uint32(back.Fd())}
		config.Info.Flags = unix.LO_FLAGS_READ_ONLY | unix.LO_FLAGS_AUTOCLEAR
		err = unix.IoctlLoopConfigure(int(dev.Fd()), &config)
		if err == nil {
			err = unix.Mount(name, dir, "erofs", unix.MS_RDONLY, "")
			return errors.Join(err, dev.Close())
		}
		dev.Close()
		if !errors.Is(err, unix.EBUSY) {
			return fmt.Errorf("LOOP_CONFIGURE %s: %w", name, err)
		}
	}
	return errors.New("no free loop device")
}

// Fsck runs fsck.erofs on the image where it is installed.
func Fsck(t testing.TB, image string) {
	t.Helper()
	path, err := exec.LookPath("fsck.erofs")
	if err != nil {
		t.Log("fsck.erofs is not installed: the image is checked by the kernel alone")
		return
	}
	if out, err := exec.Command(path, image).CombinedOutput(); err != nil {
		t.Errorf("fsck.erofs: %v\n%s", err, out)
	}
}

// File is all that is compared of one file.
type File struct {
	Mode     uint32
	UID, GID uint32
	Sec      int64
	Nsec     uint32
	Rdev     uint64
	Size     int64  // of regular files
	Nlink    uint64 // of files that are no directories
	Link     string // the first path of the same inode
	Target   string
	SHA256   string
	Xattrs   string // name=value, sorted
}

// Read reads a mounted tree: every file by its path from the root, which is ".".
// Entries for which skip returns true are left out, with all below them.
func Read(t testing.TB, dir string, skip func(path string) bool) map[string]File {
	t.Helper()
	files := map[string]File{}
	first := map[[2]uint64]string{}
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		if skip != nil && skip(rel) {
			if e.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		f, id, err := read(path)
		if err != nil {
			return err
		}
		if f.Mode&unix.S_IFMT != unix.S_IFDIR {
			if first[id] == "" {
				first[id] = rel
			}
			f.Link = first[id]
		} else {
			f.Nlink = 0 // btrfs has always 1
		}
		files[rel] = f
		return nil
	})
	if err != nil {
		t.Fatalf("read tree: %v", err)
	}
	return files
}

func read(path string) (File, [2]uint64, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return File{}, [2]uint64{}, err
	}
	f := File{
		Mode: st.Mode, UID: st.Uid, GID: st.Gid, Sec: st.Mtim.Sec, Nsec: uint32(st.Mtim.Nsec),
		Nlink: uint64(st.Nlink), Rdev: uint64(st.Rdev),
	}
	var err error
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		f.Size = st.Size
		f.SHA256, err = sum(path)
	case unix.S_IFLNK:
		f.Target, err = os.Readlink(path)
	}
	if err == nil {
		f.Xattrs, err = xattrs(path)
	}
	return f, [2]uint64{uint64(st.Dev), st.Ino}, err
}

func sum(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func xattrs(path string) (string, error) {
	list := make([]byte, 1<<16)
	n, err := unix.Llistxattr(path, list)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("llistxattr %s: %w", path, err)
	}
	var all []string
	for name := range bytes.SplitSeq(bytes.TrimSuffix(list[:n], []byte{0}), []byte{0}) {
		if len(name) == 0 {
			continue
		}
		value := make([]byte, 1<<16)
		n, err := unix.Lgetxattr(path, string(name), value)
		if err != nil {
			return "", fmt.Errorf("lgetxattr %s %s: %w", path, name, err)
		}
		all = append(all, fmt.Sprintf("%s=%q", name, value[:n]))
	}
	slices.Sort(all)
	return strings.Join(all, "\n"), nil
}

// Diff reports as test errors how got differs from want.
func Diff(t testing.TB, got, want map[string]File) {
	t.Helper()
	bad := 0
	for path, w := range want {
		g, ok := got[path]
		switch {
		case bad > 20:
			t.Fatal("and more")
		case !ok:
			bad++
			t.Errorf("%s is missing", path)
		case g != w:
			bad++
			t.Errorf("%s:\n got %+v\nwant %+v", path, g, w)
		}
	}
	for path := range got {
		if _, ok := want[path]; !ok {
			t.Errorf("%s is there and should not be", path)
		}
	}
}
