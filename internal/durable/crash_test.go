package durable_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/durable"
	"github.com/sandtree/sandtree/internal/failpoint"
	"github.com/sandtree/sandtree/internal/fault"
)

// keeperEnv makes this program one that keeps checkpoints until it is killed:
// its value is the repository's directory, a directory for files, and a number
// that no other run has.
const keeperEnv = "SANDTREE_TEST_KEEPER"

func TestMain(m *testing.M) {
	if args := os.Getenv(keeperEnv); args != "" {
		keeper(strings.Fields(args))
	}
	os.Exit(m.Run())
}

// program is a failer.
type program struct{}

func (program) Helper()        {}
func (program) Cleanup(func()) {}
func (program) Fatal(a ...any) { fmt.Fprintln(os.Stderr, a...); os.Exit(1) }

// keeper writes, removes and collects. It says "durable ID DIGEST" when a record
// is, and "removing ID" before one is removed.
func keeper(args []string) {
	var t program
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(failpoint.CheckEnv())
	ctx := context.Background()
	r, err := durable.Open(args[0], durable.Options{})
	must(err)
	files := filepath.Join(args[1], args[2])
	must(os.Mkdir(files, 0o755))
	var seed uint64
	_, err = fmt.Sscan(args[2], &seed)
	must(err)
	w := makeWorld(t, seed, files)
	last := ""
	for round := 0; ; round++ {
		c := w.step()
		c.Parent, c.ID = last, fmt.Sprintf("run%s-%s", args[2], c.ID)
		digest := w.now.digest(t)
		_, err := r.Write(ctx, c)
		must(err)
		fmt.Println("durable", c.ID, digest)
		if last = c.ID; round >= 2 {
			old := fmt.Sprintf("run%s-cp-%d", args[2], round-1)
			fmt.Println("removing", old)
			must(r.Remove(old))
		}
		var open *durable.Stored
		if round%3 == 0 { // so that something is condemned for a while
			open, err = r.Get(ctx, last)
			must(err)
		}
		_, err = r.Collect(ctx)
		if !fault.Is(err, fault.Conflict) {
			must(err)
		}
		if open != nil {
			must(open.Close())
		}
		if round == 5 {
			os.Exit(0)
		}
	}
}

// run is a keeper that was started.
type run struct {
	cmd    *exec.Cmd
	out    io.ReadCloser
	stderr strings.Builder
}

func startKeeper(t *testing.T, repository, files, number, failpoints string) *run {
	t.Helper()
	k := &run{cmd: exec.Command("/proc/self/exe")}
	k.cmd.Env = append(os.Environ(), keeperEnv+"="+repository+" "+files+" "+number, failpoint.Env+"="+failpoints)
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	k.cmd.Stderr = &k.stderr
	var err error
	if k.out, err = k.cmd.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := k.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return k
}

// promises are what keepers have reported: digests by record. A record that was
// about to be removed may be there or not.
type promises struct {
	durable  map[string]string
	removing map[string]bool
}

func newPromises() *promises { return &promises{map[string]string{}, map[string]bool{}} }

// hear takes what a keeper says, until it ends.
func (p *promises) hear(out io.Reader) {
	for s := bufio.NewScanner(out); s.Scan(); {
		p.line(s.Text())
	}
}

func (p *promises) line(text string) {
	what, rest, _ := strings.Cut(text, " ")
	id, digest, _ := strings.Cut(rest, " ")
	switch what {
	case "durable":
		p.durable[id] = digest
	case "removing":
		p.removing[id] = true
	}
}

// end waits for a keeper, and tells whether it was killed.
func (k *run) end(t *testing.T) bool {
	t.Helper()
	err := k.cmd.Wait()
	ws, _ := k.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if err == nil || ws.Signaled() && ws.Signal() == unix.SIGKILL {
		return err != nil
	}
	t.Errorf("%v: %s", err, k.stderr.String())
	return false
}

// kept checks that a repository has what was promised, that nothing half is
// listed, and that it can be worked with.
func (p *promises) kept(t *testing.T, dir string) {
	t.Helper()
	r, err := durable.Open(dir, durable.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	sound(t, r)
	p.compare(t, r)
	if t.Failed() {
		return
	}
	collect(t, r)
	sound(t, r)
	p.compare(t, r)
	for _, sub := range []string{"tmp", "leases", "condemned"} {
		if entries, err := os.ReadDir(filepath.Join(dir, sub)); err != nil || len(entries) > 0 {
			t.Errorf("after a collection %s has %v, %v", sub, entries, err)
		}
	}
}

func (p *promises) compare(t *testing.T, r *durable.Repository) {
	t.Helper()
	listed, err := r.List(t.Context())
	if err != nil {
		t.Error(err)
	}
	found := map[string]bool{}
	for _, i := range listed {
		found[i.ID] = true
	}
	for id, want := range p.durable {
		if !found[id] {
			if !p.removing[id] {
				t.Errorf("%s was durable and is gone", id)
			}
			continue
		}
		s := stored(t, r, id, filepath.Join(t.TempDir(), "files"))
		if got := s.digest(t); got != want {
			t.Errorf("%s has the digest %s, not %s", id, got, want)
		}
		s.close()
	}
}

// TestCrashAtEveryStep kills a keeper at each failpoint.
func TestCrashAtEveryStep(t *testing.T) {
	n := 0
	for _, point := range failpoint.Names() {
		if !strings.HasPrefix(point, "durable.") || strings.HasPrefix(point, "durable.import.") {
			continue
		}
		n++
		t.Run(point, func(t *testing.T) {
			dir, files := filepath.Join(t.TempDir(), "r"), t.TempDir()
			p := newPromises()
			k := startKeeper(t, dir, files, "1", point+"=2*kill")
			p.hear(k.out)
			killed := k.end(t)
			if !killed { // fewer passes than three
				k = startKeeper(t, dir, files, "2", point+"=kill")
				p.hear(k.out)
				killed = k.end(t)
			}
			if !killed {
				t.Error("nobody comes by")
			}
			p.kept(t, dir)
		})
	}
	if n < 15 {
		t.Errorf("only %d failpoints", n)
	}
}

// TestErrorAtEveryStep makes each step fail instead.
func TestErrorAtEveryStep(t *testing.T) {
	for _, point := range failpoint.Names() {
		if !strings.HasPrefix(point, "durable.pack") && !strings.HasPrefix(point, "durable.record.") && !strings.HasPrefix(point, "durable.write.") {
			continue
		}
		t.Run(point, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "r")
			r := open(t, dir)
			w := newWorld(t, 5)
			first := w.step()
			if _, err := r.Write(t.Context(), first); err != nil {
				t.Fatal(err)
			}
			was := w.still()
			second := w.step()
			t.Run("failing", func(t *testing.T) {
				failpoint.Enable(t, point, "error")
				var injected *failpoint.Error
				if _, err := r.Write(t.Context(), second); !errors.As(err, &injected) {
					t.Errorf("%v", err)
				}
			})
			if list, err := r.List(t.Context()); err != nil || len(list) != 1 {
				t.Errorf("%d records, %v", len(list), err)
			}
			for _, sub := range []string{"tmp", "leases"} {
				if entries, err := os.ReadDir(filepath.Join(dir, sub)); err != nil || len(entries) > 0 {
					t.Errorf("%s has %v, %v", sub, entries, err)
				}
			}
			check(t, r, first.ID, was)
			if _, err := r.Write(t.Context(), second); err != nil {
				t.Error(err)
			}
			check(t, r, second.ID, w.now)
			collect(t, r)
			sound(t, r)
		})
	}
}

// TestCrashAtAnyInstant kills keepers of one repository after random times.
func TestCrashAtAnyInstant(t *testing.T) {
	dir, files := filepath.Join(t.TempDir(), "r"), t.TempDir()
	p := newPromises()
	for n := range 4 {
		k := startKeeper(t, dir, files, fmt.Sprint(n+1), "")
		timer := time.AfterFunc(time.Duration(100+rand.IntN(900))*time.Millisecond, func() { _ = k.cmd.Process.Kill() })
		p.hear(k.out)
		timer.Stop()
		k.end(t)
		if n%2 == 1 {
			p.kept(t, dir)
		}
	}
	t.Logf("%d records were reported durable, of which %d were about to be removed", len(p.durable), len(p.removing))
}
