package fault_test

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/sandtree/sandtree/internal/fault"
)

func TestKindSurvivesWrapping(t *testing.T) {
	inner := fault.New(fault.NotFound, "template %q: %w", "debian", io.EOF).WithHint("run %q", "make template")
	err := fmt.Errorf("create sandbox: %w", inner)
	if got := fault.KindOf(err); got != fault.NotFound {
		t.Errorf("KindOf = %q, want %q", got, fault.NotFound)
	}
	if got := fault.HintOf(err); got != `run "make template"` {
		t.Errorf("HintOf = %q", got)
	}
	if !errors.Is(err, io.EOF) {
		t.Error("the cause is not reachable")
	}
	if got, want := err.Error(), `create sandbox: template "debian": EOF`; got != want {
		t.Errorf("text %q, want %q", got, want)
	}
}

func TestOuterKindWinsAndInnerHintShows(t *testing.T) {
	inner := fault.New(fault.Exhausted, "pool is full").WithHint("grow it")
	err := fault.New(fault.Conflict, "checkpoint: %w", inner)
	if got := fault.KindOf(err); got != fault.Conflict {
		t.Errorf("KindOf = %q", got)
	}
	if got := fault.HintOf(err); got != "grow it" {
		t.Errorf("HintOf = %q", got)
	}
}

func TestPlainErrors(t *testing.T) {
	if fault.KindOf(nil) != "" || fault.Is(nil, fault.Internal) {
		t.Error("nil has a kind")
	}
	if fault.KindOf(io.EOF) != fault.Internal || fault.HintOf(io.EOF) != "" {
		t.Error("a plain error is internal and has no hint")
	}
}

func TestEveryKindHasItsOwnExitCode(t *testing.T) {
	seen := map[int]fault.Kind{}
	for _, k := range fault.Kinds() {
		c := fault.Code(k)
		if c.Exit == 0 || c.HTTP == 0 || c.RPC == "" {
			t.Errorf("%s has no code: %+v", k, c)
		}
		if o, ok := seen[c.Exit]; ok {
			t.Errorf("%s and %s share exit code %d", k, o, c.Exit)
		}
		seen[c.Exit] = k
	}
	if fault.Code("no such kind") != fault.Code(fault.Internal) {
		t.Error("an unknown kind is not internal")
	}
}
