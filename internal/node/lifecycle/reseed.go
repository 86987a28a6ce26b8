package lifecycle

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"path"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/store"
	"github.com/sandtree/sandtree/internal/supervisor/control"
)

const (
	// ReseedHook is the program inside that gives a copy an identity of its own.
	ReseedHook = "/etc/sandtree/reseed"
	// DefaultReseedTimeout bounds it.
	DefaultReseedTimeout = 30 * time.Second
	// reseedsAtOnce is how many copies are reseeded beside each other.
	reseedsAtOnce = 16
)

// Reseeded is what became of one sandbox's [ReseedHook].
type Reseeded struct {
	Sandbox string
	Found   bool   // it has one
	Session string // it ran as
	// ExitCode and Reason are as those of sessions; Reason also says why it could
	// not run at all.
	ExitCode int
	Reason   string
	Output   string // the end of it
	Took     time.Duration
}

// Failed reports whether the program was there and did not end well.
func (r *Reseeded) Failed() bool { return r.Found && (r.ExitCode != 0 || r.Reason != "") }

// reseedAll gives copies identities of their own. They run meanwhile.
func (s *Sandboxes) reseedAll(ctx context.Context, t store.Template, copies []store.Sandbox, timeout time.Duration) ([]Reseeded, error) {
	out, errs := make([]Reseeded, len(copies)), make([]error, len(copies))
	turns := make(chan struct{}, reseedsAtOnce)
	var all sync.WaitGroup
	for i, rec := range copies {
		turns <- struct{}{}
		all.Go(func() {
			defer func() { <-turns }()
			b, err := s.find(ctx, rec.ID)
			if err == nil {
				b.mu.RLock()
				defer b.mu.RUnlock()
				out[i], err = s.reseed(ctx, b, t, i+1, timeout)
			}
			errs[i] = err
		})
	}
	all.Wait()
	for i, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("sandbox %q: %w", display(copies[i]), err)
		}
	}
	return out, nil
}

// reseedNew reseeds a sandbox that was just created. b.mu is held.
func (s *Sandboxes) reseedNew(ctx context.Context, b *sandbox, t store.Template) error {
	r, err := s.reseed(ctx, b, t, 1, 0)
	if err == nil && r.Failed() {
		why := ""
		if r.Reason != "" {
			why = " (" + r.Reason + ")"
		}
		err = fault.New(fault.Invalid, "%s ended with status %d%s%s", ReseedHook, r.ExitCode, why, quote("the end of its output", r.Output)).
			WithHint("try it in a sandbox of a template without --reseed")
	}
	if err != nil {
		return fmt.Errorf("reseed: %w", err)
	}
	return nil
}

// reseed gives a sandbox an identity of its own: /etc/machine-id and /etc/hostname
// where they are files, and what its [ReseedHook] does, as root, with SANDTREE_
// variables that say who it is. number counts the copies of one fork from 1. b.mu is
// held.
func (s *Sandboxes) reseed(ctx context.Context, b *sandbox, t store.Template, number int, timeout time.Duration) (out Reseeded, err error) {
	begin := time.Now()
	rec := b.record()
	out.Sandbox = rec.ID
	defer func() { out.Took = time.Since(begin) }()
	client, err := b.usable()
	if err != nil {
		return out, err
	}
	var random [16 + 32]byte
	_, _ = rand.Read(random[:]) // it never fails
	machine, seed := hex.EncodeToString(random[:16]), hex.EncodeToString(random[16:])
	for _, f := range []struct{ path, text string }{{"/etc/machine-id", machine + "\n"}, {"/etc/hostname", rec.Hostname + "\n"}} {
		if err := rewrite(ctx, client, rec.ID, f.path, f.text); err != nil {
			return out, err
		}
	}
	_, _, err = client.File(ctx, control.FileRequest{Sandbox: rec.ID, Op: control.FileStat, Path: ReseedHook})
	if fault.Is(err, fault.NotFound) {
		return out, nil
	}
	if err != nil {
		return out, err
	}
	out.Found = true
	if timeout == 0 {
		timeout = DefaultReseedTimeout
	}
	se, release, err := s.exec(ctx, b, t, ExecOptions{
		Argv: []string{ReseedHook}, Dir: path.Dir(ReseedHook), User: "root", StdinClosed: true, Timeout: timeout,
		Env: map[string]string{
			"SANDTREE_SANDBOX": rec.ID, "SANDTREE_NAME": rec.Name, "SANDTREE_HOSTNAME": rec.Hostname,
			"SANDTREE_TEMPLATE": t.Name, "SANDTREE_CHECKPOINT": rec.ForkedFrom, "SANDTREE_COPY": strconv.Itoa(number),
			"SANDTREE_MACHINE_ID": machine, "SANDTREE_SEED": seed,
		},
	})
	if err != nil { // it is no program, or nobody may execute it
		out.ExitCode, out.Reason = notRun, err.Error()
		return out, nil //nolint:nilerr // reported
	}
	defer release()
	waitEnd(ctx, se, timeout+time.Minute) // it is killed at the limit
	r := se.Record()
	out.Session, out.ExitCode, out.Reason, out.Output = r.ID, r.ExitCode, r.Reason, tail(ctx, se)
	switch {
	case ctx.Err() != nil:
		return out, context.Cause(ctx)
	case !r.Ended:
		out.Reason = "it has not ended within " + timeout.String()
	}
	return out, nil
}

// notRun is the exit code of what could not be executed, as of a shell.
const notRun = 126

// rewrite gives a regular file inside other content, with its owner and mode. What is
// missing or no such file is left alone.
func rewrite(ctx context.Context, client *control.Client, sandbox, file, text string) error {
	was, _, err := client.File(ctx, control.FileRequest{Sandbox: sandbox, Op: control.FileStat, Path: file, NoFollow: true})
	if fault.Is(err, fault.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if was.Entry.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil
	}
	_, f, err := client.File(ctx, control.FileRequest{
		Sandbox: sandbox, Op: control.FileCreate, Path: file, Mode: was.Entry.Mode & 0o7777, UID: was.Entry.UID, GID: was.Entry.GID,
	})
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return nil
}
