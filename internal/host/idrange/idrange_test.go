package idrange_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/host/idrange"
)

func open(t *testing.T, path string) *idrange.Table {
	t.Helper()
	tab, err := idrange.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return tab
}

func TestRangesAreApartAndStable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "families.json")
	tab := open(t, path)
	var mu sync.Mutex
	bases := map[uint32]string{}
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			f := fmt.Sprintf("tp-%d", i)
			base, err := tab.Take(f)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if o, ok := bases[base]; ok || base < idrange.First || base%idrange.Size != 0 {
				t.Errorf("%s has base %#x; %s has it too", f, base, o)
			}
			bases[base] = f
		})
	}
	wg.Wait()
	tab = open(t, path)
	for base, f := range bases {
		if got, err := tab.Take(f); err != nil || got != base {
			t.Errorf("%s: %#x, %v, had %#x", f, got, err, base)
		}
	}
	first := bases[idrange.First]
	if err := tab.Drop(first); err != nil {
		t.Fatal(err)
	}
	if err := tab.Drop("never there"); err != nil {
		t.Error(err)
	}
	if got, err := open(t, path).Take("new"); err != nil || got != idrange.First {
		t.Errorf("the range that was given back is not used: %#x, %v", got, err)
	}
	es, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(es) != 1 {
		t.Errorf("files left: %v, %v", es, err)
	}
}

func TestBrokenFilesAreRefused(t *testing.T) {
	for name, content := range map[string]string{
		"no JSON":      `{"a":`,
		"twice":        `{"a":1,"b":1}`,
		"out of range": `{"a":4000000000}`,
		"negative":     `{"a":-1}`,
	} {
		path := filepath.Join(t.TempDir(), "families.json")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := idrange.Open(path); err == nil || fault.HintOf(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}
