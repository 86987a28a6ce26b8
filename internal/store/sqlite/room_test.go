package sqlite_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/roottest"
	"github.com/sandtree/sandtree/internal/store"
)

// smallDisk mounts a file system of a few MiB that goes away with the test.
func smallDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	err := unix.Mount("sandtree-test", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=40m")
	if errors.Is(err, unix.EPERM) {
		t.Skipf("skipped: %v", &roottest.NotRootError{For: "mounting a tmpfs"})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir
}

// fill writes until the disk is full, and returns how to make room again.
func fill(t *testing.T, dir string) (empty func()) {
	t.Helper()
	name := filepath.Join(dir, "fill")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	for block := make([]byte, 4096); err == nil; {
		_, err = f.Write(block)
	}
	if cerr := f.Close(); cerr != nil || !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("fill the disk: %v, %v", err, cerr)
	}
	return func() {
		if err := os.Remove(name); err != nil {
			t.Error(err)
		}
	}
}

func TestAFullDiskStillRemoves(t *testing.T) {
	dir := smallDisk(t)
	db := open(t, dir)
	defer func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}()
	const n = 300
	for i := range n {
		if err := db.AddTemplate(t.Context(), store.Template{ID: fmt.Sprint(i), Name: fmt.Sprint("n", i)}); err != nil {
			t.Fatal(err)
		}
	}
	empty := fill(t, dir)
	for i := range n {
		if err := db.RemoveTemplate(t.Context(), fmt.Sprint(i)); err != nil {
			t.Fatalf("remove %d: %v", i, err)
		}
	}
	empty()
	if _, err := db.Template(t.Context(), "0"); !fault.Is(err, fault.NotFound) {
		t.Errorf("a removed template: %v", err)
	}
}
