// Package statdevtest gives tests what a host gives its supervisors to show
// device numbers with.
package statdevtest

import (
	"errors"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/feature"
	"github.com/sandtree/sandtree/internal/linux/statdev"
)

// attach attaches once in a test's process, until its end.
var attach = sync.OnceValues(func() (*statdev.Attachment, error) {
	if err := feature.Named("device numbers").Check(); err != nil {
		return nil, err
	}
	return statdev.Attach()
})

// Open opens a table of the users from base on, which the caller closes. It
// returns nil where the kernel cannot: tests that do not need it go on without.
func Open(t testing.TB, base uint32) *statdev.Table {
	t.Helper()
	a, err := attach()
	if m := (*feature.MissingError)(nil); errors.As(err, &m) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	var fds []int
	for _, f := range a.Files() {
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		fds = append(fds, fd)
	}
	table, err := statdev.OpenTable(fds, base)
	if err != nil {
		t.Fatal(err)
	}
	return table
}
