// Package fault gives errors a kind that survives every boundary: a process's
// socket, the API, the exit code of a command.
//
// An error says what failed, on what, why, and what to do. The first three are
// the text of the wrapped chain; the last is a hint, shown on a line of its
// own by the command line. The kind is for programs.
package fault

import (
	"errors"
	"fmt"
)

// Kind classifies an error for programs.
type Kind string

// The kinds. Codes that other protocols have for them stand in one table, see
// [Code].
const (
	Internal     Kind = "internal"     // a defect of sandtree, or of the machine
	Invalid      Kind = "invalid"      // the request can never work as it is
	NotFound     Kind = "not_found"    // the thing named does not exist
	Exists       Kind = "exists"       // the name is taken
	Conflict     Kind = "conflict"     // the thing is in a state that forbids it now
	Exhausted    Kind = "exhausted"    // room, memory or a limit ran out
	Unsupported  Kind = "unsupported"  // the kernel or machine lacks a feature
	Uncapturable Kind = "uncapturable" // a process holds state that no checkpoint can keep
	Lost         Kind = "lost"         // the sandbox's processes died with their supervisor
	Unavailable  Kind = "unavailable"  // the daemon or a part of it does not answer
	Canceled     Kind = "canceled"     // the caller went away
	Deadline     Kind = "deadline"     // a time limit passed
	Permission   Kind = "permission"   // the caller may not
)

// Error is an error with a kind and, optionally, a hint.
type Error struct {
	Kind Kind
	// Hint tells the user what to do about it; empty if there is nothing.
	Hint string
	// Passes is set if the cause is of the moment: the same may work soon.
	Passes bool
	// Err is the text and the cause.
	Err error
}

func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// New makes an error of a kind from a format, in which %w works.
func New(k Kind, format string, a ...any) *Error {
	return &Error{Kind: k, Err: fmt.Errorf(format, a...)}
}

// WithHint returns a copy of the error that tells the user what to do.
func (e *Error) WithHint(format string, a ...any) *Error {
	c := *e
	c.Hint = fmt.Sprintf(format, a...)
	return &c
}

// Passing returns a copy of the error whose cause is of the moment.
func (e *Error) Passing() *Error {
	c := *e
	c.Passes = true
	return &c
}

// Passes reports whether the cause of the outermost [Error] in err's chain that
// has one is of the moment, so that the same may work soon.
func Passes(err error) bool {
	for err != nil {
		var e *Error
		if !errors.As(err, &e) {
			return false
		}
		if e.Passes {
			return true
		}
		err = e.Err
	}
	return false
}

// KindOf returns the kind of the outermost [Error] in err's chain, and
// [Internal] for an error without one. A nil error has no kind.
func KindOf(err error) Kind {
	if err == nil {
		return ""
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return Internal
}

// HintOf returns the outermost hint in err's chain, or nothing.
func HintOf(err error) string {
	for err != nil {
		var e *Error
		if !errors.As(err, &e) {
			return ""
		}
		if e.Hint != "" {
			return e.Hint
		}
		err = e.Err
	}
	return ""
}

// Is reports whether err is of kind k.
func Is(err error, k Kind) bool { return err != nil && KindOf(err) == k }
