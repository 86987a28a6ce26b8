package main

import (
	"strings"
	"testing"
)

func TestReport(t *testing.T) {
	var out strings.Builder
	r := report{out: &out, output: map[string][]string{}}
	for _, e := range []event{
		{Action: "output", Package: "p", Test: "TestGood", Output: "chatter\n"},
		{Action: "pass", Package: "p", Test: "TestGood"},
		{Action: "output", Package: "p", Test: "TestSkip", Output: "=== RUN   TestSkip\n"},
		{Action: "output", Package: "p", Test: "TestSkip", Output: "    x_test.go:1: no such kernel\n"},
		{Action: "skip", Package: "p", Test: "TestSkip"},
		{Action: "output", Package: "p", Test: "TestBad", Output: "    x_test.go:2: wrong\n"},
		{Action: "fail", Package: "p", Test: "TestBad"},
		{Action: "output", Package: "p", Test: "TestDies", Output: "panic: at the disco\n"},
		{Action: "output", Package: "p", Output: "FAIL\tp\t1.0s\n"},
		{Action: "fail", Package: "p"},
		{Action: "output", Package: "q", Output: "ok  \tq\t1.0s\n"},
		{Action: "pass", Package: "q"},
	} {
		r.take(e)
	}
	want := "    x_test.go:2: wrong\nFAIL\tp\t1.0s\npanic: at the disco\nok  \tq\t1.0s\n"
	if got := out.String(); got != want {
		t.Errorf("printed %q, want %q", got, want)
	}
	if r.passed != 1 || len(r.failed) != 2 || len(r.skipped) != 1 || r.skipped[0] != "p TestSkip: x_test.go:1: no such kernel" {
		t.Errorf("%d passed, failed %q, skipped %q", r.passed, r.failed, r.skipped)
	}
}
