package pressure_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/pressure"
)

func TestWakeEndsWait(t *testing.T) {
	w, err := pressure.Open(pressure.Memory, time.Second)
	if fault.Is(err, fault.Unsupported) {
		t.Skipf("skipped: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	ended := make(chan bool)
	go func() {
		for w.Wait() { // the machine may be short of memory in fact
		}
		ended <- true
	}()
	w.Wake()
	<-ended
	if w.Wait() {
		t.Error("it waits again after the end")
	}
}

func TestNoPressureFile(t *testing.T) {
	if _, err := pressure.Open(filepath.Join(t.TempDir(), "none"), time.Second); !fault.Is(err, fault.Unsupported) {
		t.Errorf("a kernel without the file: %v", err)
	}
	// A stall longer than the window is what no kernel takes.
	if _, err := os.Stat(pressure.Memory); err == nil {
		if _, err := pressure.Open(pressure.Memory, time.Hour); !fault.Is(err, fault.Unsupported) {
			t.Errorf("a stall of an hour in two seconds: %v", err)
		}
	}
}
