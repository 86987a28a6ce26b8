package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/fault"
)

func TestExitCodes(t *testing.T) {
	remote := &client.Error{Kind: client.NotFound, Message: "sandbox x: not found", Hint: "look: sandtree ls"}
	for name, tt := range map[string]struct {
		err  error
		code int
	}{
		"success":           {nil, 0},
		"plain":             {errors.New("x"), 1},
		"of the daemon":     {fmt.Errorf("show: %w", remote), 3},
		"local":             {fault.New(fault.Invalid, "x"), 2},
		"a program's":       {exitCode(42), 42},
		"a program's, run":  {asRuntimeFailure(exitCode(3)), 3},
		"run: daemon":       {asRuntimeFailure(remote), 125},
		"run: bad request":  {asRuntimeFailure(fault.New(fault.Invalid, "x")), 125},
		"run: time limit":   {asRuntimeFailure(fault.New(fault.Deadline, "x")), 125},
		"run: no such file": {asRuntimeFailure(&runtimeFailure{err: remote, code: exitNotFound}), 127},
	} {
		var errs bytes.Buffer
		inv := &invocation{err: &errs}
		if got := inv.exit(tt.err); got != tt.code {
			t.Errorf("%s: exit code %d, want %d", name, got, tt.code)
		}
	}
}

func TestErrorsForReadersAndPrograms(t *testing.T) {
	err := fmt.Errorf("show: %w", &client.Error{Kind: client.NotFound, Message: "no sandbox x", Hint: "see: sandtree ls"})
	var errs bytes.Buffer
	(&invocation{err: &errs}).exit(err)
	if got, want := errs.String(), "sandtree: show: no sandbox x\n  see: sandtree ls\n"; got != want {
		t.Errorf("%q", got)
	}
	errs.Reset()
	(&invocation{err: &errs, json: true}).exit(err)
	var v map[string]string
	if jerr := json.Unmarshal(errs.Bytes(), &v); jerr != nil || v["kind"] != "not_found" || v["hint"] != "see: sandtree ls" {
		t.Errorf("%v, %v", v, jerr)
	}
}
