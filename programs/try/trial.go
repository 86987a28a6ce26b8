package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/programs/view"
)

// trial is a program in its sandbox.
type trial struct {
	options
	c       *client.Client
	sb      *client.Sandbox
	before  view.View
	moving  map[string]bool
	differs bool
}

// inside is where this program is in the sandbox: not among files that a
// program looks at.
const inside = "/.sandtree-try"

// begin installs this program, starts the command and waits for it.
func begin(ctx context.Context, c *client.Client, sb *client.Sandbox, o options) (*trial, error) {
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	defer self.Close()
	if _, err := sb.WriteFile(ctx, client.WriteConfig{Path: inside, Mode: 0o755}, self); err != nil {
		return nil, err
	}
	t := &trial{options: o, c: c, sb: sb}
	if _, err = sb.Start(ctx, client.Command{Argv: []string{"sh", "-c", o.command}}); err != nil {
		return nil, err
	}
	if o.ready != "" {
		if _, err := shell(ctx, sb, o.ready); err != nil {
			return nil, err
		}
	}
	select { // how long a program takes to be where it is interesting is the user's to say
	case <-time.After(o.after):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	return t, nil
}

// through takes the program through all.
func (t *trial) through(ctx context.Context) error {
	var err error
	if t.before, err = take(ctx, t.sb); err != nil {
		return err
	}
	if len(t.before) == 0 || t.ended(ctx, t.sb, "before the checkpoint") {
		return fmt.Errorf("the command has ended before the checkpoint; -after says how long it runs")
	}
	cp, err := t.sb.Checkpoint(ctx, "")
	if err != nil {
		return err
	}
	fmt.Printf("checkpoint: frozen %.2f ms, %d processes, %d threads, %.1f MB\n", float64(cp.FrozenNS)/1e6, cp.Processes, cp.Threads, float64(cp.DirtyBytes)/1e6)
	first, err := take(ctx, t.sb)
	if err != nil {
		return err
	}
	second, err := take(ctx, t.sb)
	if err != nil {
		return err
	}
	t.moving = view.Moving(t.before, first, second)
	files, err := t.changed(ctx, t.sb, cp)
	if err != nil {
		return err
	}
	t.ended(ctx, t.sb, "live, after the checkpoint")
	if err := t.checked(ctx, t.sb, "live, after the checkpoint"); err != nil {
		return err
	}
	for i := range t.rollbacks {
		r, err := t.sb.Rollback(ctx, cp.ID)
		if err != nil {
			return err
		}
		if err := t.compare(ctx, t.sb, cp, files, fmt.Sprintf("rollback %d, %.2f ms", i+1, float64(r.ElapsedNS)/1e6)); err != nil {
			return err
		}
	}
	f, err := cp.Fork(ctx, t.forks)
	if err != nil {
		return err
	}
	delete(t.before, "host name") // a copy has its own
	for i, sb := range f.Sandboxes {
		err := t.compare(ctx, sb, cp, nil, fmt.Sprintf("copy %d, %.2f ms", i+1, float64(f.ElapsedNS[i])/1e6))
		if err := errors.Join(err, sb.Remove(context.WithoutCancel(ctx), true)); err != nil {
			return err
		}
	}
	if t.differs {
		return errDiffers
	}
	return nil
}

// compare says what differs from before. Files are those that the program
// changed by itself; nil: files are not compared.
func (t *trial) compare(ctx context.Context, sb *client.Sandbox, cp *client.Checkpoint, files map[string]bool, where string) error {
	v, err := take(ctx, sb)
	if err != nil {
		return err
	}
	if t.before["host name"] == "" {
		delete(v, "host name")
	}
	var said []string
	known := 0
	for _, d := range view.Compare(t.before, v, t.moving) {
		if view.Knows(t.before, d, view.Copy) != nil {
			known++
			continue
		}
		said = append(said, d.String())
	}
	if files != nil {
		now, err := t.changed(ctx, sb, cp)
		if err != nil {
			return err
		}
		for name := range now {
			if files[name] {
				continue
			}
			socket, err := isSocket(ctx, sb, name)
			if err != nil {
				return err
			}
			if socket { // bound anew, with an inode of its own
				known++
			} else {
				said = append(said, "file "+name+" has changed, which the live program did not change")
			}
		}
	}
	fmt.Printf("%s: %d differences%s\n", where, len(said), andKnown(known))
	for _, s := range said {
		t.differs = true
		fmt.Println("  " + s)
	}
	t.ended(ctx, sb, where)
	return t.checked(ctx, sb, where)
}

// andKnown says how many fields differ as docs/limits.md says they do.
func andKnown(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(", and %d known ones (docs/limits.md)", n)
}

// ended says so if the command does not run any more, and what it said last.
func (t *trial) ended(ctx context.Context, sb *client.Sandbox, where string) bool {
	all, err := sb.Sessions(ctx)
	if err != nil {
		return false
	}
	for _, s := range all {
		if !s.Ended && len(s.Argv) == 3 && s.Argv[2] == t.command {
			return false
		}
	}
	t.differs = true
	fmt.Printf("%s: the command does not run any more\n", where)
	for _, s := range all {
		if len(s.Argv) != 3 || s.Argv[2] != t.command {
			continue
		}
		fmt.Printf("  it ended with %d %s\n", s.ExitCode, s.Reason)
		if a, err := s.Attach(ctx, client.AttachOptions{NoFollow: true}); err == nil {
			var out bytes.Buffer
			_, _ = a.Copy(client.Stdio{Out: &out, Err: &out})
			fmt.Println("  its last output:", strings.TrimSpace(out.String()))
		}
	}
	return true
}

// checked runs the user's check.
func (t *trial) checked(ctx context.Context, sb *client.Sandbox, where string) error {
	if t.check == "" {
		return nil
	}
	said, err := shell(ctx, sb, t.check)
	var failed *exitError
	if errors.As(err, &failed) {
		t.differs = true
		fmt.Printf("%s: the check fails: %v\n", where, err)
		return nil
	}
	if err == nil {
		fmt.Printf("%s: the check says %s\n", where, strings.TrimSpace(said))
	}
	return err
}
