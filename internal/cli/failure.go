package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/fault"
)

// Exit codes of the commands that pass a program's own code on.
const (
	exitRuntime       = 125 // sandtree failed, not the program
	exitNotExecutable = 126
	exitNotFound      = 127
)

// exitCode is the end of a program inside a sandbox: nothing to print, and
// the code to exit with.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// runtimeFailure is a failure of sandtree where the exit code otherwise
// belongs to the program.
type runtimeFailure struct {
	err  error
	code int
}

func (f *runtimeFailure) Error() string { return f.err.Error() }
func (f *runtimeFailure) Unwrap() error { return f.err }

// usageError is a fault of the command line itself.
func usageError(cmd *cobra.Command, err error) error {
	return fault.New(fault.Invalid, "%s%w", prefix(cmd), err).WithHint("see: %s --help", cmd.CommandPath())
}

// prefix is what begins the text of a command's error, behind the program's name.
func prefix(cmd *cobra.Command) string {
	if _, path, ok := strings.Cut(cmd.CommandPath(), " "); ok {
		return path + ": "
	}
	return ""
}

// exit prints an error for a reader or, with --json, for a program, and
// returns the exit code.
func (inv *invocation) exit(err error) int {
	var code exitCode
	if err == nil {
		return 0
	}
	if errors.As(err, &code) {
		return int(code)
	}
	kind, hint := kindOf(err), hintOf(err)
	if inv.json {
		report := struct {
			Error string     `json:"error"`
			Kind  fault.Kind `json:"kind"`
			Hint  string     `json:"hint,omitempty"`
		}{err.Error(), kind, hint}
		_ = json.NewEncoder(inv.err).Encode(report)
	} else {
		fmt.Fprintf(inv.err, "sandtree: %v\n", err)
		if hint != "" {
			fmt.Fprintf(inv.err, "  %s\n", hint)
		}
	}
	var failure *runtimeFailure
	if errors.As(err, &failure) {
		return failure.code
	}
	return fault.Code(kind).Exit
}

// kindOf and hintOf know the errors of both sides of the API: kinds have the
// same names there.
func kindOf(err error) fault.Kind {
	var remote *client.Error
	if errors.As(err, &remote) {
		return fault.Kind(remote.Kind)
	}
	if k := fault.KindOf(err); k != fault.Internal {
		return k
	}
	return fault.Kind(client.KindOf(err))
}

func hintOf(err error) string {
	if h := client.HintOf(err); h != "" {
		return h
	}
	return fault.HintOf(err)
}

// exitsAsProgram annotates commands whose exit code is a program's own.
const exitsAsProgram = "exits as its program"

// asRuntimeFailure gives an error of such a command the exit codes that other
// container tools have for it: one for all that is sandtree's, whatever its kind.
func asRuntimeFailure(err error) error {
	var code exitCode
	var decided *runtimeFailure
	if err == nil || errors.As(err, &code) || errors.As(err, &decided) {
		return err
	}
	return &runtimeFailure{err: err, code: exitRuntime}
}

// printJSON writes v as one indented JSON value.
func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
