package architecture

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

// listed is what the tests need of one package in `go list -json`.
type listed struct {
	ImportPath string
	Imports    []string
	Deps       []string
}

// list returns the path of this module and its packages by directory. What
// their tests import is not looked at: a test may build a whole.
func list(t *testing.T) (module string, pkgs map[string]listed) {
	t.Helper()
	out, err := exec.Command("go", "list", "-m").Output()
	if err != nil {
		t.Fatal(err)
	}
	module = strings.TrimSpace(string(out))
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Imports,Deps", module+"/...")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pkgs = map[string]listed{}
	for d := json.NewDecoder(stdout); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs[strings.TrimPrefix(p.ImportPath, module+"/")] = p
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if len(pkgs) == 0 {
		t.Fatal("go list names no package of this module")
	}
	return module, pkgs
}

func TestImportsPointDown(t *testing.T) {
	module, pkgs := list(t)
	for dir, p := range pkgs {
		if _, err := placeOf(dir); err != nil {
			t.Error(err)
			continue
		}
		for _, imp := range p.Imports {
			if to, ours := strings.CutPrefix(imp, module+"/"); ours {
				if err := mayImport(dir, to); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

func TestLowerPartsReachNoUpperWorld(t *testing.T) {
	_, pkgs := list(t)
	for dir, p := range pkgs {
		at, err := placeOf(dir)
		if err != nil {
			continue // the other test reports it
		}
		for _, bad := range unreachable[at.component] {
			for _, dep := range p.Deps {
				if dep == bad || strings.HasSuffix(bad, "/") && strings.HasPrefix(dep, bad) {
					t.Errorf("%s reaches %s", dir, dep)
				}
			}
		}
	}
}

func TestPackageNamesSayTheirPurpose(t *testing.T) {
	_, pkgs := list(t)
	for dir := range pkgs {
		if slices.Contains(badNames, path.Base(dir)) {
			t.Errorf("%s: the name says nothing of its purpose", dir)
		}
	}
}

func TestRules(t *testing.T) {
	for _, tt := range []struct {
		from, to string
		ok       bool
	}{
		{"internal/engine", "internal/tree", true},
		{"internal/tree", "internal/engine", false},
		{"internal/process", "internal/rootfs", false},
		{"internal/process/capture", "internal/process/image", true},
		{"internal/linux/mount", "internal/linux/feature", true},
		{"internal/linux/mount", "internal/fault", true},
		{"internal/linux/mount", "internal/wire", false},
		{"internal/supervisor", "internal/host", false},
		{"internal/host", "internal/supervisor/control", true},
		{"internal/node", "internal/host", true},
		{"internal/node", "api/sandtree/v1", true},
		{"internal/engine", "api/sandtree/v1", false},
		{"internal/cli/bench", "client", true},
		{"internal/node", "internal/cli", false},
		{"client", "internal/node", false},
		{"internal/cli", "internal/testrootfs", false},
		{"internal/testrootfs", "internal/fault", true},
		{"internal/nowhere", "internal/fault", false},
	} {
		if err := mayImport(tt.from, tt.to); (err == nil) != tt.ok {
			t.Errorf("%s importing %s: %v", tt.from, tt.to, err)
		}
	}
}
