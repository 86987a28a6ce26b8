package worker

import (
	"slices"
	"testing"
)

func TestWorkIsAwaitedWhileAnybodyWaits(t *testing.T) {
	var said []string
	say := func(what string) func() error {
		return func() error { said = append(said, what); return nil }
	}
	a := awaiting{background: say("back"), foreground: say("fore")}
	first := a.begin()
	second := a.begin()
	first()
	second()
	a.begin()()
	if want := []string{"fore", "back", "fore", "back"}; !slices.Equal(said, want) {
		t.Errorf("%q, not %q", said, want)
	}
}
