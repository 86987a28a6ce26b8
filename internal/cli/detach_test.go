package cli

import (
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestDetachKeys(t *testing.T) {
	for _, tt := range []struct {
		in, out  string
		detached bool
	}{
		{"ls\r", "ls\r", false},
		{"ls\x10\x11more", "ls", true},
		{"\x10x", "\x10x", false},
		{"\x11", "\x11", false},
		{"a\x10\x10\x11b", "a\x10", true},
		{"\x10\x11", "", true},
	} {
		for name, src := range map[string]io.Reader{
			"whole": strings.NewReader(tt.in),
			"bytes": iotest.OneByteReader(strings.NewReader(tt.in)),
		} {
			d := &detachReader{src: src}
			got, err := io.ReadAll(d)
			if err != nil || string(got) != tt.out || d.detached != tt.detached {
				t.Errorf("%q in %s: %q, detached %v, %v", tt.in, name, got, d.detached, err)
			}
		}
	}
}
