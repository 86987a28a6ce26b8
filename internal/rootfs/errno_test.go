package rootfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

func TestErrorf(t *testing.T) {
	for _, c := range []struct {
		cause error
		want  fault.Kind
		hint  bool
	}{
		{unix.ENOSPC, fault.Exhausted, true},
		{fmt.Errorf("deep: %w", unix.EDQUOT), fault.Exhausted, true},
		{unix.ENOENT, fault.NotFound, false},
		{fs.ErrNotExist, fault.NotFound, false},
		{unix.EEXIST, fault.Exists, false},
		{unix.ENOSYS, fault.Unsupported, false},
		{context.Canceled, fault.Canceled, false},
		{context.DeadlineExceeded, fault.Deadline, false},
		{fault.New(fault.Conflict, "so it is: %w", unix.ENOENT), fault.Conflict, false},
		{errors.New("else"), fault.Internal, false},
	} {
		err := Errorf("do it: %w", c.cause)
		if fault.KindOf(err) != c.want || !errors.Is(err, c.cause) || (fault.HintOf(err) != "") != c.hint {
			t.Errorf("%v: kind %s, hint %q", err, fault.KindOf(err), fault.HintOf(err))
		}
	}
}
