package thread_test

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/roottest"
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

// Another thread's ids stay what they are, and its own are the old ones again.
func TestAs(t *testing.T) {
	roottest.Need(t, "becoming another user")
	ids := func() string {
		b, err := os.ReadFile("/proc/thread-self/status")
		if err != nil {
			t.Error(err)
		}
		_, b, _ = bytes.Cut(b, []byte("\nUid:"))
		b, _, _ = bytes.Cut(b, []byte{'\n'})
		return strings.Join(strings.Fields(string(b)), " ")
	}
	caps := func() (c [2]unix.CapUserData) {
		if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &c[0]); err != nil {
			t.Error(err)
		}
		return c
	}
	failure := errors.New("what it returns")
	err := thread.Own(func() error {
		had := caps()
		err := thread.As(1234, func() error {
			if got := ids(); got != "0 1234 0 0" {
				t.Errorf("it has ids %s", got)
			}
			if caps() != had {
				t.Error("it has lost capabilities")
			}
			err := thread.Own(func() error {
				if got := ids(); got != "0 0 0 0" {
					t.Errorf("another one has ids %s", got)
				}
				return nil
			})
			return errors.Join(err, failure)
		})
		if got := ids(); got != "0 0 0 0" || caps() != had {
			t.Errorf("afterwards it has ids %s", got)
		}
		bits, e := unix.PrctlRetInt(unix.PR_GET_SECUREBITS, 0, 0, 0, 0)
		if bits != 0 || e != nil {
			t.Errorf("securebits %#x, %v", bits, e)
		}
		return err
	})
	if !errors.Is(err, failure) {
		t.Errorf("it returned %v", err)
	}
}
