package cli

import (
	"maps"
	"slices"
	"testing"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

func TestDashed(t *testing.T) {
	for _, tt := range []struct {
		args      []string
		own, argv []string
		bad       bool
	}{
		{args: []string{"sb", "--", "ls", "-l"}, own: []string{"sb"}, argv: []string{"ls", "-l"}},
		{args: []string{"sb", "--flag", "--", "ls", "--flag"}, own: []string{"sb"}, argv: []string{"ls", "--flag"}},
		{args: []string{"sb", "--", "ls", "--", "x"}, own: []string{"sb"}, argv: []string{"ls", "--", "x"}},
		{args: []string{"sb", "make", "all"}, own: []string{"sb"}, argv: []string{"make", "all"}},
		{args: []string{"sb", "--"}, own: []string{"sb"}},
		{args: []string{"sb"}, own: []string{"sb"}},
		{args: nil},
		{args: []string{"sb", "other", "--", "ls"}, bad: true},
	} {
		cmd := &cobra.Command{Use: "exec", RunE: func(cmd *cobra.Command, args []string) error {
			own, argv, err := dashed(cmd, args, 1)
			if (err != nil) != tt.bad || !slices.Equal(own, tt.own) || !slices.Equal(argv, tt.argv) {
				t.Errorf("%q = %q, %q, %v", tt.args, own, argv, err)
			}
			return nil
		}}
		cmd.Flags().Bool("flag", false, "")
		cmd.SetArgs(tt.args)
		if tt.args == nil {
			cmd.SetArgs([]string{})
		}
		if err := cmd.Execute(); err != nil {
			t.Errorf("%q: %v", tt.args, err)
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
