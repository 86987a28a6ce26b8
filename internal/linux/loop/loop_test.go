package loop

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestAttach(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	content := bytes.Repeat([]byte("sandtree"), 1024)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d, err := Attach(f, Options{DirectIO: true, BlockSize: 4096})
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(d.Path())
	if err != nil || !bytes.Equal(got, content) {
		t.Errorf("the device reads %d bytes, %v", len(got), err)
	}
	if err := f.Truncate(16384); err != nil {
		t.Fatal(err)
	}
	if err := d.UpdateSize(); err != nil {
		t.Fatal(err)
	}
	if got, err = os.ReadFile(d.Path()); err != nil || len(got) != 16384 {
		t.Errorf("after it grew the device has %d bytes, %v", len(got), err)
	}
	backing := filepath.Join("/sys/block", filepath.Base(d.Path()), "loop/backing_file")
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if b, err := os.ReadFile(backing); err != nil || !bytes.Contains(b, []byte(path)) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("still attached after its last user closed it")
		}
	}
}

func TestReadOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, make([]byte, 8192), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d, err := Attach(f, Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	w, err := os.OpenFile(d.Path(), os.O_WRONLY, 0)
	if err == nil {
		_, err = w.Write([]byte("x"))
		w.Close()
	}
	if err == nil {
		t.Error("a read-only device was written to")
	}
}

func TestAttachWhatIsNoFile(t *testing.T) {
	f, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if d, err := Attach(f, Options{}); err == nil {
		d.Close()
		t.Error("a directory became a device")
	}
}
