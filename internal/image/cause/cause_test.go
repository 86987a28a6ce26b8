package cause_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/image/cause"
)

func TestKinds(t *testing.T) {
	other := errors.New("other")
	for _, c := range []struct {
		err         error
		system, tar fault.Kind
	}{
		{nil, "", ""},
		{other, fault.Internal, fault.Internal},
		{fault.New(fault.Conflict, "%w", unix.ENOSPC), fault.Conflict, fault.Conflict},
		{&os.PathError{Op: "write", Path: "/x", Err: unix.ENOSPC}, fault.Exhausted, fault.Exhausted},
		{fmt.Errorf("x: %w", unix.EDQUOT), fault.Exhausted, fault.Exhausted},
		{unix.ENOENT, fault.NotFound, fault.NotFound},
		{unix.EACCES, fault.Permission, fault.Permission},
		{context.Canceled, fault.Canceled, fault.Canceled},
		{context.DeadlineExceeded, fault.Deadline, fault.Deadline},
		{io.ErrUnexpectedEOF, fault.Internal, fault.Invalid},
		{fmt.Errorf("x: %w", tar.ErrHeader), fault.Internal, fault.Invalid},
	} {
		if got := cause.System(c.err); fault.KindOf(got) != c.system || !errors.Is(got, c.err) {
			t.Errorf("System(%v) = %v (%s)", c.err, got, fault.KindOf(got))
		}
		if got := cause.Tar(c.err); fault.KindOf(got) != c.tar || !errors.Is(got, c.err) {
			t.Errorf("Tar(%v) = %v (%s)", c.err, got, fault.KindOf(got))
		}
	}
}

func TestReader(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r := cause.Reader{Ctx: ctx, R: bytes.NewReader([]byte("ab"))}
	if n, err := r.Read(make([]byte, 1)); n != 1 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	cancel()
	if n, err := r.Read(make([]byte, 1)); n != 0 || !fault.Is(err, fault.Canceled) {
		t.Errorf("%d, %v", n, err)
	}
}
