package control_test

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// Two processes' views of a ledger are one, and who waits in one hears of the
// other.
func TestLedger(t *testing.T) {
	a, err := control.NewLedger()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	fd, err := unix.FcntlInt(a.File().Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	b, err := control.OpenLedger(os.NewFile(uintptr(fd), "ledger"))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	x, err := a.Account(3)
	if err != nil {
		t.Fatal(err)
	}
	y, err := b.Account(20_000)
	if err != nil {
		t.Fatal(err)
	}
	x.Set(10, 500)
	y.Set(32, 700)
	if a.Total() != 42 || b.Total() != 42 {
		t.Errorf("totals %d and %d, want 42", a.Total(), b.Total())
	}
	if !x.Turn() || y.Turn() || !x.Oldest(500) || y.Oldest(700) || !y.Oldest(400) {
		t.Error("who is to give something up first is wrong")
	}
	y.SetBusy(true)
	if !a.Busy() {
		t.Error("nobody is busy")
	}
	n := a.Changes()
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		a.Await(n)
	}()
	y.Clear()
	select {
	case <-heard:
	case <-time.After(30 * time.Second):
		t.Fatal("the call is not heard")
	}
	if a.Busy() || a.Total() != 10 || !x.Oldest(1<<40) {
		t.Error("a cleared account counts")
	}
	for _, row := range []int{-1, 1 << 20} {
		if _, err := a.Account(row); err == nil {
			t.Errorf("there is a row %d", row)
		}
	}
}
