// Package examples_test runs the examples against a daemon, on a project that
// is small and whose tests take no time.
package examples_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sandtree/sandtree/demo/lab"
	"github.com/sandtree/sandtree/internal/testdaemon"
)

// pytest stands for pytest in the project: a test passes when the new text of
// its patch is there. What the warm test process needs of pytest is its only
// contract.
const pytest = `
import json, pathlib

class Report:
    def __init__(self, name, passed):
        self.nodeid, self.when, self.passed, self.failed = name, "call", passed, not passed

def main(args, plugins):
    for name, path, text in json.loads(pathlib.Path("wanted.json").read_text()):
        for p in plugins:
            p.pytest_runtest_logreport(Report(name, text in pathlib.Path(path).read_text()))
`

// writeProject makes a project to which every candidate applies.
func writeProject(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "project")
	write := func(name, content string) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	files := map[string]string{}
	for _, c := range lab.Candidates {
		for _, e := range c.Edits {
			if !strings.Contains(files[e.Path], e.Old) {
				files[e.Path] += e.Old
			}
		}
	}
	for name, content := range files {
		write(name, content)
	}
	write("tests/__init__.py", "")
	write("pytest.py", pytest)
	write("wanted.json", `[
		["order", "sqlparse/keywords.py", "tokens.Keyword.Order"],
		["strip", "sqlparse/filters/others.py", "while "]
	]`)
	return dir
}

func TestExamples(t *testing.T) {
	project := writeProject(t)
	programs := t.TempDir()
	testdaemon.Build(t, programs, "examples/bestofn", "examples/mcts")
	d := testdaemon.Start(t)
	for _, name := range []string{"bestofn", "mcts"} {
		t.Run(name, func(t *testing.T) {
			out, err := exec.Command(filepath.Join(programs, name), "-socket", d.Socket, "-template", "test", "-project", project, "-fresh", "1").CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for _, want := range []string{
				`at the start 2 tests fail`,
				`in the end 0 tests fail`,
				`state took [0-9.]+% of the work; [0-9]+ nodes a minute`,
				`fresh starts: state takes [0-9.]+% of the work; [0-9]+ nodes a minute`,
			} {
				if !regexp.MustCompile(want).Match(out) {
					t.Errorf("it does not say %q\n%s", want, out)
				}
			}
		})
	}
	// They leave no sandbox.
	all, err := d.Dial().Sandboxes(t.Context())
	if err != nil || len(all) > 0 {
		t.Errorf("%d sandboxes are left: %v", len(all), err)
	}
}

func TestExamplesSayWhatIsMissing(t *testing.T) {
	programs := t.TempDir()
	testdaemon.Build(t, programs, "examples/bestofn", "examples/mcts")
	for _, name := range []string{"bestofn", "mcts"} {
		out, err := exec.Command(filepath.Join(programs, name), "-socket", filepath.Join(programs, "none.sock")).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "no daemon answers") {
			t.Errorf("%s without a daemon: %v\n%s", name, err, out)
		}
	}
}
