// Package feature finds out what the running kernel can do.
//
// Each [Feature] has a probe that tries the thing itself, since distributions
// carry patches back and leave options out: a version number proves nothing.
// Probes are harmless and leave nothing behind. A feature that is not there
// is a [MissingError], which says which kernel brings it; tests may skip on
// that error and on no other (package featuretest).
package feature

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// Feature is one thing that sandtree wants of a kernel or machine.
type Feature struct {
	Name    string // short, stable
	For     string // what sandtree uses it for
	Without string // what is lost where it is missing
	Kernel  string // the first release that has it, such as "6.7"
	Help    string // what would bring it, other than that kernel
	// Required features have no substitute: without one nothing runs.
	Required bool

	probe func() error
}

// Result is the outcome of a probe.
type Result struct {
	Feature
	// Err is nil where the feature is there, a [*MissingError] where it is
	// not, and another error where that could not be found out, mostly for
	// want of privilege ([fault.Permission]).
	Err error
}

// All lists all features, the required ones first.
func All() []Feature {
	var required, optional []Feature
	for _, group := range [][]Feature{processFeatures, memoryFeatures, fileFeatures, groupFeatures, networkFeatures} {
		for _, f := range group {
			if f.Required {
				required = append(required, f)
			} else {
				optional = append(optional, f)
			}
		}
	}
	return append(required, optional...)
}

// Probe probes all features in their order. When ctx ends, the rest have its
// error.
func Probe(ctx context.Context) []Result {
	all := All()
	results := make([]Result, len(all))
	for i, f := range all {
		results[i] = Result{Feature: f, Err: ctx.Err()}
		if results[i].Err == nil {
			results[i].Err = f.Check()
		}
	}
	return results
}

// Require fails with [fault.Unsupported] and says all that is missing where a
// required feature is. One that cannot be tried does not count.
func Require(ctx context.Context) error { return require(ctx, All()) }

func require(ctx context.Context, features []Feature) error {
	var lost []error
	for _, f := range features {
		if !f.Required {
			continue
		}
		if err := ctx.Err(); err != nil {
			return fault.New(fault.Canceled, "check the kernel: %w", err)
		}
		var m *MissingError
		if err := f.Check(); errors.As(err, &m) {
			lost = append(lost, fmt.Errorf("%w: without it %s", err, f.Without))
		}
	}
	if len(lost) == 0 {
		return nil
	}
	text := lost[0].Error()
	for _, err := range lost[1:] {
		text += "; " + err.Error()
	}
	return &fault.Error{
		Kind: fault.Unsupported, Hint: "sandtree doctor shows everything that is missing, and what would help",
		Err: fmt.Errorf("this machine's kernel cannot run sandboxes: %w", &lostError{text, lost}),
	}
}

// lostError is several missing features on one line.
type lostError struct {
	text string
	lost []error
}

func (e *lostError) Error() string   { return e.text }
func (e *lostError) Unwrap() []error { return e.lost }

// Check probes one feature; see [Result] for the error.
func (f Feature) Check() error {
	err := f.probe()
	switch {
	case err == nil:
		return nil
	case isMissing(err):
		return f.missing(err)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		hint := "run as root"
		if unix.Geteuid() == 0 {
			hint = "not in a chroot, nor in a container without CAP_SYS_ADMIN or with a seccomp profile or security module that forbids it"
		}
		return fault.New(fault.Permission, "%s cannot be tried: %w", f.Name, err).WithHint("%s", hint)
	}
	return fault.New(fault.Internal, "%s cannot be tried: %w", f.Name, err)
}

// Named finds a feature; it panics for a name that none has.
func Named(name string) Feature {
	for _, f := range All() {
		if f.Name == name {
			return f
		}
	}
	panic("no feature is named " + name)
}

// MissingError says that the kernel or machine lacks a feature. Its kind is
// [fault.Unsupported].
type MissingError struct {
	Feature string
	Kernel  string // the first release that has it
	Running string // the release that runs
	Help    string
	Err     error // what the probe met
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("%s is missing (Linux %s has it, this is %s): %v", e.Feature, e.Kernel, e.Running, e.Err)
}

// Unwrap gives the error its kind and hint, and its cause.
func (e *MissingError) Unwrap() error {
	return &fault.Error{Kind: fault.Unsupported, Hint: e.Help, Err: e.Err}
}

func (f Feature) missing(err error) *MissingError {
	return &MissingError{Feature: f.Name, Kernel: f.Kernel, Running: Release(), Help: f.Help, Err: err}
}

// Missing makes the error for a feature that was met to be missing while it
// was used: for callers that do not probe.
func Missing(name string, err error) error { return Named(name).missing(err) }

// errAbsent is the cause where no system call says it better.
var errAbsent = errors.New("not there")

// isMissing tells errors of things that do not exist from failures.
func isMissing(err error) bool {
	for _, e := range []error{
		errAbsent, fs.ErrNotExist, unix.ENOSYS, unix.EINVAL, unix.EOPNOTSUPP, unix.ENODEV,
		unix.ENXIO, unix.ENOTTY, unix.ENOTBLK, unix.ENOPROTOOPT, unix.EAFNOSUPPORT, unix.E2BIG,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// Release is the running kernel's release, such as "6.12.48-amd64".
var Release = sync.OnceValue(func() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
})
