package process

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

func TestParseTimers(t *testing.T) {
	const text = `ID: 7
signal: 60/00007fff86e452a8
notify: signal/tid.2634
ClockID: 0
ID: 2
signal: 0/0000000000000000
notify: none/pid.12
ClockID: -6
`
	got, err := parseTimers([]byte(text))
	want := []image.POSIXTimer{
		{ID: 2, Timer: image.Timer{Clock: unix.CLOCK_PROCESS_CPUTIME_ID}, Notify: sigevNone},
		{ID: 7, Notify: sigevThreadID, Signal: 60, Value: 0x7fff86e452a8, TID: 2634},
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%+v %v", got, err)
	}
	for _, bad := range []string{"signal: 1/2\n", "ID: x\n", "ID: 1\nnotify: smoke/pid.1\n", "ID: 1\nnonsense"} {
		if got, err := parseTimers([]byte(bad)); err == nil {
			t.Errorf("%q: %+v", bad, got)
		}
	}
}

func FuzzParseTimers(f *testing.F) {
	f.Add("ID: 7\nsignal: 60/00007fff86e452a8\nnotify: signal/tid.2634\nClockID: 0\n")
	f.Add("ID: 0\nnotify: none/pid.1\n")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := parseTimers([]byte(text))
		if err == nil && len(got) > len(text) {
			t.Errorf("%q: %d timers", text, len(got))
		}
	})
}
