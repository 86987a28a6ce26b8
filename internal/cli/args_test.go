package cli

import (
	"maps"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

func TestDashed(t *testing.T) {
	for _, tt := range []struct {
		args      []string
		n         int
		own, argv []string
	}{
		{[]string{"sb", "--", "ls", "-l"}, 1, []string{"sb"}, []string{"ls", "-l"}},
		{[]string{"sb", "ls", "--", "x"}, 1, []string{"sb"}, []string{"ls", "--", "x"}},
		{[]string{"sb"}, 1, []string{"sb"}, nil},
		{[]string{"sb", "--"}, 1, []string{"sb"}, nil},
		{[]string{"ls"}, 0, nil, []string{"ls"}},
		{nil, 1, nil, nil},
	} {
		own, argv := dashed(tt.args, tt.n)
		if !slices.Equal(own, tt.own) || !slices.Equal(argv, tt.argv) {
			t.Errorf("dashed(%q, %d) = %q, %q", tt.args, tt.n, own, argv)
		}
	}
}

func TestEnvironment(t *testing.T) {
	t.Setenv("CLI_TEST_SET", "here")
	got, err := environment([]string{"A=b=c", "B=", "CLI_TEST_SET", "A=d"})
	if want := map[string]string{"A": "d", "B": "", "CLI_TEST_SET": "here"}; err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"=x", "", "CLI_TEST_UNSET"} {
		if _, err := environment([]string{bad}); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestSignalNumber(t *testing.T) {
	for in, want := range map[string]unix.Signal{"TERM": 15, "sigkill": 9, "SIGHUP": 1, "9": 9, "64": 64} {
		if got, err := signalNumber(in); err != nil || got != want {
			t.Errorf("%q = %d, %v", in, got, err)
		}
	}
	for _, bad := range []string{"", "0", "65", "-9", "NOSUCH"} {
		if n, err := signalNumber(bad); err == nil {
			t.Errorf("%q = %d", bad, n)
		}
	}
}

func TestParseEnd(t *testing.T) {
	for in, want := range map[string]end{
		"try:/srv":    {"try", "/srv"},
		"try:":        {"try", "/"},
		"try:rel/a:b": {"try", "rel/a:b"},
		"-":           {"", "-"},
		"/abs/a:b":    {"", "/abs/a:b"},
		"./a:b":       {"", "./a:b"},
		"plain":       {"", "plain"},
		":x":          {"", ":x"},
	} {
		if got := parseEnd(in); got != want {
			t.Errorf("%q = %+v", in, got)
		}
	}
}
