package bench

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sandtree/sandtree/internal/cli/bench/subject"
)

func TestFloors(t *testing.T) {
	f, err := openFloors(t.Context(), Config{Subject: subject.Config{HeapBytes: 8 << 20, DirtyBytes: 1 << 20, DirtyFiles: 3}, Scratch: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer f.close()
	for _, m := range measurements {
		for _, fig := range m.figures {
			if fig.floor == nil {
				continue
			}
			for range 2 {
				if d, err := fig.floor(f); err != nil || d <= 0 {
					t.Errorf("%s: %v, %v", fig.name, d, err)
				}
			}
		}
	}
}

func TestWork(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "work")
	if err := Work(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the work leaves its directory: %v", err)
	}
}

func TestMemoryOf(t *testing.T) {
	ended := 0
	if _, err := memoryOf(3, func() (func(), error) { return func() { ended++ }, nil }); err != nil || ended != 3 {
		t.Errorf("ended %d of 3: %v", ended, err)
	}
}
