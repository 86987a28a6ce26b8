package thread_test

import (
	"errors"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/thread"
)

func TestOwn(t *testing.T) {
	root, err := os.Readlink("/proc/self/cwd")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			for range 40 {
				err := thread.Own(func() error {
					if unix.Gettid() == unix.Getpid() {
						return errors.New("it is the main thread")
					}
					if err := unix.Unshare(unix.CLONE_FS); err != nil {
						return err
					}
					return unix.Chdir(dir)
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if now, err := os.Readlink("/proc/self/cwd"); err != nil || now != root {
		t.Errorf("the working directory is %s (%v), was %s", now, err, root)
	}
	failed := errors.New("failed")
	if err := thread.Own(func() error { return failed }); !errors.Is(err, failed) {
		t.Errorf("the error is %v", err)
	}
}
