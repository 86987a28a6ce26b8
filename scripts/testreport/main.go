// Command testreport reads the events of `go test -json` and prints what a
// reader wants: the closing line of each package, the whole output of tests
// that failed, and at the end the tests that were skipped, with their reasons.
// It exits with 1 if anything failed.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

// event is one line of test2json (go doc test2json), or of a failed build.
type event struct {
	Action     string
	Package    string
	ImportPath string // of build events
	Test       string
	Output     string
}

type report struct {
	out     io.Writer
	output  map[string][]string // of the test or package under this key
	skipped []string
	passed  int
	failed  []string
}

func (r *report) take(e event) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "build-output":
		fmt.Fprint(r.out, e.Output)
	case "output":
		if e.Test == "" && closing(e.Output) {
			fmt.Fprint(r.out, e.Output)
			return
		}
		r.output[key] = append(r.output[key], e.Output)
	case "fail":
		r.failed = append(r.failed, key)
		r.print(key)
		if e.Test == "" {
			// Tests that were running when the process died have no event.
			for _, k := range slices.Sorted(maps.Keys(r.output)) {
				if strings.HasPrefix(k, key) {
					r.print(k)
				}
			}
		}
	case "skip":
		if e.Test != "" {
			r.skipped = append(r.skipped, key+": "+reason(r.output[key]))
		}
		delete(r.output, key)
	case "pass":
		if e.Test != "" {
			r.passed++
		}
		delete(r.output, key)
	}
}

// print writes what was kept under a key.
func (r *report) print(key string) {
	for _, l := range r.output[key] {
		fmt.Fprint(r.out, l)
	}
	delete(r.output, key)
}

// closing reports whether a line is the one that go test ends a package with.
func closing(line string) bool {
	return strings.HasPrefix(line, "ok ") || strings.HasPrefix(line, "FAIL\t") || strings.HasPrefix(line, "? ")
}

// reason finds what a test said when it skipped: the lines that are not the
// frame of go test's own.
func reason(output []string) string {
	var said []string
	for _, l := range output {
		l = strings.TrimSpace(l)
		if l != "" && !strings.HasPrefix(l, "=== ") && !strings.HasPrefix(l, "--- ") {
			said = append(said, l)
		}
	}
	return strings.Join(said, " ")
}

func main() {
	r := report{out: os.Stdout, output: map[string][]string{}}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			fmt.Println(lines.Text()) // not an event: the go command speaking
			continue
		}
		r.take(e)
	}
	if err := lines.Err(); err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
		os.Exit(1)
	}
	fmt.Printf("%d passed, %d skipped, %d failed\n", r.passed, len(r.skipped), len(r.failed))
	for _, s := range r.skipped {
		fmt.Println("skipped", s)
	}
	for _, f := range r.failed {
		fmt.Println("failed", strings.TrimSpace(f))
	}
	if len(r.failed) > 0 {
		os.Exit(1)
	}
}
