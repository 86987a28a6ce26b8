package memory

import (
	"slices"
	"testing"
)

func TestGuardsMeet(t *testing.T) {
	g := guards{{10, 20}, {30, 40}, {50, 60}}
	var met guards
	note := func(s, e uint64) error { met = append(met, span{s, e}); return nil }
	left, err := g.meet(15, 55, note)
	if err != nil || !slices.Equal(left, guards{{10, 15}, {55, 60}}) || !slices.Equal(met, guards{{15, 20}, {30, 40}, {50, 55}}) {
		t.Errorf("left %v, met %v, %v", left, met, err)
	}
	met = nil
	if left, _ = g.meet(32, 34, note); !slices.Equal(left, guards{{10, 20}, {30, 32}, {34, 40}, {50, 60}}) || len(met) != 1 {
		t.Errorf("left %v, met %v", left, met)
	}
	if left, _ = g.meet(20, 30, note); !slices.Equal(left, g) || len(met) != 1 {
		t.Errorf("left %v, met %v", left, met)
	}
}
