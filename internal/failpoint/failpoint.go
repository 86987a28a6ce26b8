// Package failpoint makes named places of the program fail on purpose, so
// that tests can show what a failure or crash there leaves behind.
//
// A place is declared once, in a variable, and asked at each pass:
//
//	var snapshotTaken = failpoint.New("engine.checkpoint.snapshot")
//
//	if err := snapshotTaken.Hit(); err != nil {
//		return err
//	}
//
// Failpoints are always compiled in. One that is not enabled costs an atomic
// load. They are enabled from outside, for a process, by the environment:
//
//	SANDTREE_FAILPOINTS="engine.checkpoint.snapshot=kill;tree.commit=error"
//
// and from a test by [Enable]. The actions are
//
//	error      Hit returns an *Error
//	panic      Hit panics
//	kill       the process kills itself with SIGKILL, as a crash would
//	delay:N    Hit waits N milliseconds and returns nil
//
// An action may be preceded by a count, as in "3*error": it takes effect at
// the third pass and at no other.
package failpoint

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Env is the environment variable that enables failpoints.
const Env = "SANDTREE_FAILPOINTS"

// Point is one named place. Make it with [New] in a package variable.
type Point struct {
	name   string
	action atomic.Pointer[action]
}

// action is what an enabled point does.
type action struct {
	kind  kind
	delay time.Duration
	nth   int64 // the pass that it takes effect at; 0 means every one
	pass  atomic.Int64
}

type kind uint8

const (
	fail kind = iota
	panics
	kill
	delay
)

// Error is what an enabled failpoint returns.
type Error struct{ Name string }

func (e *Error) Error() string { return "failpoint " + e.Name }

var registry = struct {
	sync.Mutex
	points map[string]*Point
	env    map[string]*action // of the environment, until the point is declared
	bad    error              // what the environment has that cannot be read
}{points: map[string]*Point{}}

// New declares a failpoint. Names are unique and have the form
// "package.operation.step"; a second declaration panics.
func New(name string) *Point {
	registry.Lock()
	defer registry.Unlock()
	if _, ok := registry.points[name]; ok {
		panic("failpoint " + name + " is declared twice")
	}
	if registry.env == nil {
		registry.env, registry.bad = parse(os.Getenv(Env))
	}
	p := &Point{name: name}
	p.action.Store(registry.env[name])
	registry.points[name] = p
	return p
}

// Names lists all failpoints of this program, sorted.
func Names() []string {
	registry.Lock()
	defer registry.Unlock()
	return slices.Sorted(maps.Keys(registry.points))
}

// CheckEnv tells what is wrong with the environment variable: a text that
// cannot be read, or a name that no package declares. Programs call it when
// they start, since a crash test with a misspelt name would prove nothing.
func CheckEnv() error {
	registry.Lock()
	defer registry.Unlock()
	if registry.env == nil {
		registry.env, registry.bad = parse(os.Getenv(Env))
	}
	if registry.bad != nil {
		return registry.bad
	}
	for _, name := range slices.Sorted(maps.Keys(registry.env)) {
		if _, ok := registry.points[name]; !ok {
			return fmt.Errorf("%s: no failpoint is named %q", Env, name)
		}
	}
	return nil
}

// parse reads "name=action;name=action".
func parse(text string) (map[string]*action, error) {
	actions := map[string]*action{}
	for part := range strings.SplitSeq(text, ";") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		name, what, ok := strings.Cut(part, "=")
		if !ok || name == "" {
			return actions, fmt.Errorf("%s: %q is not name=action", Env, part)
		}
		a, err := parseAction(what)
		if err != nil {
			return actions, fmt.Errorf("%s: %s: %w", Env, name, err)
		}
		actions[name] = a
	}
	return actions, nil
}

func parseAction(text string) (*action, error) {
	a := &action{}
	what := text
	if count, rest, ok := strings.Cut(text, "*"); ok {
		n, err := strconv.ParseInt(count, 10, 64)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("count %q is not a positive number", count)
		}
		a.nth, what = n, rest
	}
	switch ms, isDelay := strings.CutPrefix(what, "delay:"); {
	case what == "error":
		a.kind = fail
	case what == "panic":
		a.kind = panics
	case what == "kill":
		a.kind = kill
	case isDelay:
		n, err := strconv.ParseUint(ms, 10, 31)
		if err != nil {
			return nil, fmt.Errorf("delay %q is not a number of milliseconds", ms)
		}
		a.kind, a.delay = delay, time.Duration(n)*time.Millisecond
	default:
		return nil, fmt.Errorf("action %q is none of error, panic, kill, delay:N", what)
	}
	return a, nil
}

// Name is the point's name.
func (p *Point) Name() string { return p.name }

// Hit passes the point: it returns nil, or does what the point is enabled
// for.
func (p *Point) Hit() error {
	a := p.action.Load()
	if a == nil {
		return nil
	}
	return a.take(p.name)
}

func (a *action) take(name string) error {
	if pass := a.pass.Add(1); a.nth != 0 && pass != a.nth {
		return nil
	}
	switch a.kind {
	case panics:
		panic((&Error{name}).Error())
	case kill:
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		select {} // until the signal has come
	case delay:
		time.Sleep(a.delay)
		return nil
	}
	return &Error{name}
}

// Test is the part of testing.TB that [Enable] needs.
type Test interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
}

// Enable enables a failpoint until the test ends. Failpoints are global:
// tests that enable the same one must not run in parallel.
func Enable(t Test, name, action string) {
	t.Helper()
	a, err := parseAction(action)
	if err != nil {
		t.Fatalf("failpoint %s: %v", name, err)
	}
	registry.Lock()
	p, ok := registry.points[name]
	registry.Unlock()
	if !ok {
		t.Fatalf("no failpoint is named %q", name)
	}
	before := p.action.Swap(a)
	t.Cleanup(func() { p.action.Store(before) })
}
