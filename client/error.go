package client

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"syscall"

	"connectrpc.com/connect"

	sandtreev1 "github.com/sandtree/sandtree/api/sandtree/v1"
)

// ErrorKind classifies an error for programs.
type ErrorKind string

// The kinds of errors.
const (
	Internal     ErrorKind = "internal"     // a defect of sandtree, or of the machine
	Invalid      ErrorKind = "invalid"      // the request can never work as it is
	NotFound     ErrorKind = "not_found"    // the thing named does not exist
	Exists       ErrorKind = "exists"       // the name is taken
	Conflict     ErrorKind = "conflict"     // the thing is in a state that forbids it now
	Exhausted    ErrorKind = "exhausted"    // room, memory or a limit ran out
	Unsupported  ErrorKind = "unsupported"  // the kernel or machine lacks a feature
	Uncapturable ErrorKind = "uncapturable" // a process holds state that no checkpoint can keep
	Lost         ErrorKind = "lost"         // the sandbox's processes died with their supervisor
	Unavailable  ErrorKind = "unavailable"  // the daemon or a part of it does not answer
	Canceled     ErrorKind = "canceled"     // the caller went away
	Deadline     ErrorKind = "deadline"     // a time limit passed
	Permission   ErrorKind = "permission"   // the caller may not
)

// Error is an error of a call.
type Error struct {
	Kind ErrorKind
	// Message says what failed, on what and why.
	Message string
	// Hint tells what to do about it; it may be empty.
	Hint string
	// Err is the cause on this side, if there is one.
	Err error
}

// Error returns the message, without the hint.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the cause on this side.
func (e *Error) Unwrap() error { return e.Err }

// KindOf returns the kind of an error, [Internal] for one that is no
// [*Error], and nothing for nil.
func KindOf(err error) ErrorKind {
	var e *Error
	switch {
	case err == nil:
		return ""
	case errors.As(err, &e):
		return e.Kind
	case errors.Is(err, context.Canceled):
		return Canceled
	case errors.Is(err, context.DeadlineExceeded):
		return Deadline
	}
	return Internal
}

// HintOf returns what to do about an error, or nothing.
func HintOf(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Hint
	}
	return ""
}

// byCode gives the kind of an error that brought no detail: one that a server
// of another version, or the transport, made.
var byCode = map[connect.Code]ErrorKind{
	connect.CodeInvalidArgument:    Invalid,
	connect.CodeNotFound:           NotFound,
	connect.CodeAlreadyExists:      Exists,
	connect.CodeFailedPrecondition: Conflict,
	connect.CodeResourceExhausted:  Exhausted,
	connect.CodeUnimplemented:      Unsupported,
	connect.CodeDataLoss:           Lost,
	connect.CodeUnavailable:        Unavailable,
	connect.CodeCanceled:           Canceled,
	connect.CodeDeadlineExceeded:   Deadline,
	connect.CodePermissionDenied:   Permission,
}

// wrap makes an Error of what a call returned. It keeps io.EOF and nil.
func wrap(err error) error {
	if err == nil {
		return nil
	}
	var ce *connect.Error
	if !errors.As(err, &ce) {
		return &Error{Kind: KindOf(err), Message: err.Error(), Err: err}
	}
	if notText(ce) {
		return &Error{
			Kind: Invalid, Err: err, Message: "the request holds bytes that are not UTF-8 text",
			Hint: "names, arguments and variables are text; pass other bytes on standard input, and copy files with such names with their directory",
		}
	}
	e := &Error{Kind: Internal, Message: ce.Message(), Err: err}
	if k, ok := byCode[ce.Code()]; ok {
		e.Kind = k
	}
	if brokenOff(ce) {
		return &Error{
			Kind: Unavailable, Err: err, Message: "the connection to the daemon broke: " + e.Message,
			Hint: "the daemon, or its part that serves clients, has ended and may be starting again; look what was done before you try again",
		}
	}
	for _, d := range ce.Details() {
		v, err := d.Value()
		if err != nil {
			continue
		}
		if f, ok := v.(*sandtreev1.Fault); ok {
			e.Kind, e.Hint = ErrorKind(f.GetKind()), f.GetHint()
		}
	}
	return e
}

// brokenOff reports whether a call ended with its connection, and not by an answer or by
// who called. The transport has errors without a type for some of it.
func brokenOff(err *connect.Error) bool {
	switch {
	case connect.IsWireError(err), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return false
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed):
		return true
	}
	return strings.Contains(err.Message(), "http2: client conn") || strings.Contains(err.Message(), "http2: server sent GOAWAY")
}

// notText reports whether a request was not sent, since a string in it is not
// UTF-8, which protocol buffers refuse with an error that has no type.
func notText(err *connect.Error) bool {
	return !connect.IsWireError(err) && strings.Contains(err.Message(), "invalid UTF-8")
}
