package engine_test

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

var (
	execStorm   = flag.Int("execstorm", 15, "how many checkpoints are taken in a storm of execves")
	execStormOf = flag.String("execstormof", "6 4000 1", "its processes, the microseconds between the execves of one, and how many threads of each keep a processor busy")
)

// stormBound is how long a checkpoint in a storm may take, on a busy machine, whether it is
// refused or not.
const stormBound = 30 * time.Second

// Several programs of many threads that execute themselves every few milliseconds, by the
// main thread or another: a checkpoint succeeds, or is refused as what it is, in bounded time.
// When the storm rests one succeeds. Afterwards they go on, nobody is traced, and the sandbox can be removed.
func TestKindsOfExecStorms(t *testing.T) {
	program := buildFile(t, "testdata/execstorm/execstorm.c")
	for _, by := range []string{"main", "other", "both"} {
		t.Run(by, func(t *testing.T) {
			h := newHost(t, withoutStandbys)
			box := h.create()
			h.put(box, "/root/execstorm", program)
			var of [3]string
			_, err := fmt.Sscan(*execStormOf, &of[0], &of[1], &of[2])
			check(t, err)
			x := h.exec(box, false, "/root/execstorm", of[0], of[1], of[2], by)
			x.until("= ready")
			goesOn := func(x *talk) {
				t.Helper()
				if got := x.ask("go on", "= "); got != "all go on" {
					t.Fatal(got)
				}
			}
			goesOn(x)
			stopTheWorld(t)
			var last string
			var longest, total time.Duration
			refused := 0
			for range *execStorm {
				id := h.id("cp")
				begin := time.Now()
				_, err := h.engine.Checkpoint(background, control.CheckpointRequest{Sandbox: box, Checkpoint: id})
				took := time.Since(begin)
				longest, total = max(longest, took), total+took
				switch {
				case err == nil:
					last = id
				case fault.Is(err, fault.Uncapturable):
					refused++
					t.Log(err)
				default:
					t.Error(err)
				}
			}
			t.Logf("%d of %d checkpoints were refused; %v each, at most %v", refused, *execStorm, total/time.Duration(*execStorm), longest)
			if longest > stormBound {
				t.Errorf("a checkpoint took %v", longest)
			}
			goesOn(x)
			untraced(t)
			if last == "" { // it may have been too busy: then when the storm rests
				if got := x.ask("rest", "= "); got != "all rest" {
					t.Fatal(got)
				}
				last = h.id("cp")
				_, err := h.engine.Checkpoint(background, control.CheckpointRequest{Sandbox: box, Checkpoint: last})
				check(t, err)
				goesOn(x)
			}
			_, ss := h.rollback(box, last)
			goesOn(ss[x.id])
			untraced(t)
			check(t, h.engine.Remove(background, control.SandboxRequest{Sandbox: box}))
		})
	}
}

// stopTheWorld has the Go runtime stop the world again and again, as collections of garbage do:
// no thread of ours may keep it from that while it waits for what another one is to do.
func stopTheWorld(t *testing.T) {
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		var m runtime.MemStats
		for ; ; runtime.ReadMemStats(&m) {
			select {
			case <-end:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	t.Cleanup(func() { close(end); <-ended })
}

// buildFile builds a program of one file.
func buildFile(t *testing.T, source string) []byte {
	t.Helper()
	to := filepath.Join(t.TempDir(), "p")
	out, err := exec.Command("gcc", "-O1", "-static", "-pthread", "-Wall", "-Wextra", "-Werror", "-o", to, source).CombinedOutput()
	if err != nil {
		t.Fatalf("gcc (the race detector needs it, too): %v\n%s", err, out)
	}
	b, err := os.ReadFile(to)
	check(t, err)
	return b
}

// untraced waits until this process traces nobody any more: what did not stop in time is let
// go as soon as it does.
func untraced(t *testing.T) {
	t.Helper()
	var traced []string
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if traced = tracedByUs(t); len(traced) == 0 {
			return
		}
	}
	t.Errorf("still traced: %q", traced)
}

func tracedByUs(t *testing.T) (out []string) {
	t.Helper()
	tasks, err := filepath.Glob("/proc/[0-9]*/task/*/status")
	check(t, err)
	for _, path := range tasks {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		_, tracer, _ := strings.Cut(string(b), "\nTracerPid:\t")
		tracer, _, _ = strings.Cut(tracer, "\n")
		if _, err := os.Stat("/proc/self/task/" + tracer); err == nil && tracer != "0" {
			out = append(out, string(b))
		}
	}
	return out
}
