package soak

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sandtree/sandtree/client"
)

// kept is a checkpoint: what the program said there, and whether it was reported
// durable. Said is empty if it is not known.
type kept struct {
	id, said string
	durable  bool
	how      string // it was taken
}

// moved notes that the sandbox stands at a checkpoint that was just made.
func (b *box) moved(id string) {
	if b.parents == nil {
		b.parents = map[string]string{}
	}
	if _, known := b.parents[id]; !known && id != b.at {
		b.parents[id] = b.at
	}
	b.at = id
}

// suspend notes the checkpoint of a suspension. The one before may be there still,
// and above another checkpoint.
func (b *box) suspend(k kept) {
	if b.suspension.id != "" {
		b.former = append(b.former, kept{id: b.suspension.id, said: b.suspension.said})
	}
	b.suspension = k
}

// find is a checkpoint that the sandbox should have, or may have.
func (b *box) find(id string) *kept {
	if id != "" && b.suspension.id == id {
		return &b.suspension
	}
	for i := range b.kept {
		if b.kept[i].id == id {
			return &b.kept[i]
		}
	}
	for i := range b.former {
		if b.former[i].id == id {
			return &b.former[i]
		}
	}
	return nil
}

// mayComeBackAt are the checkpoints at which the sandbox may be after a crash: the
// nearest above where it stood that was reported durable, or one between, which
// may have become so. Empty stands for the one that it was forked from.
func (b *box) mayComeBackAt() []string {
	var ids []string
	for id := b.at; id != ""; id = b.parents[id] {
		ids = append(ids, id)
		if k := b.find(id); k != nil && k.durable {
			return ids
		}
	}
	return append(ids, "")
}

// errLost says that nothing is left of a sandbox, as may be.
var errLost = fmt.Errorf("lost, as nothing of it was reported durable")

// errNoProgram says that a sandbox is there without the program.
var errNoProgram = errors.New("no session of the program runs")

// catchUp finds out what has become of a sandbox in disasters that it has not
// seen yet, and whether that may be.
func (b *box) catchUp(ctx context.Context) error {
	n := b.k.calm()
	if b.removed { // to be replaced, which was cut off
		return errLost
	}
	if b.seen == n {
		return nil
	}
	since := b.k.since(b.seen)
	for {
		err := b.lookAround(ctx, since)
		again := b.k.calm()
		if again == n {
			b.seen, b.unsure = n, false
			if err != nil {
				return fmt.Errorf("after %v: %w", since, err)
			}
			return nil
		}
		n, since = again, b.k.since(b.seen) // it has struck again meanwhile
		b.unsure = true
	}
}

func (b *box) lookAround(ctx context.Context, since []disaster) error {
	before := b.last
	// A command brings it back, if it stands still.
	err := through(ctx, func() error {
		_, err := b.sb.Run(ctx, client.Command{Argv: []string{"true"}}, client.Stdio{})
		return err
	})
	if b.leaving && client.KindOf(err) == client.NotFound {
		return errLost
	}
	expected := b.mayComeBackAt()
	if err != nil {
		return b.orLost(err, expected)
	}
	if err := b.rejoin(ctx); errors.Is(err, errNoProgram) && slices.Contains(expected, "") && !b.origin.durable {
		// A stop has hibernated it before its program was started, and nothing
		// later was reported durable.
		return errLost
	} else if err != nil {
		return b.orLost(err, expected)
	}
	said, err := b.verify(ctx)
	if err != nil {
		return b.orLost(err, expected)
	}
	var tree client.Tree
	if err := through(ctx, func() (err error) { tree, err = b.sb.Tree(ctx); return err }); err != nil {
		return err
	}
	there := map[string]bool{}
	for _, c := range tree.Checkpoints {
		there[c.ID] = true
	}
	for _, k := range b.kept {
		if k.durable && !there[k.id] {
			return fmt.Errorf("checkpoint %s was reported durable, and is gone", k.id)
		}
	}
	b.kept = slices.DeleteFunc(b.kept, func(k kept) bool { return !there[k.id] })
	_, _ = fmt.Sscanf(said, "whole %d", &b.steps)
	b.past.note("  after %v at %s, expected at %v", since, tree.At, expected)
	at := b.find(tree.At)
	if tree.At == "" {
		at = &b.origin
	}
	if at != nil && at.said == "" && !b.unsure { // else what was under way may have changed it since
		at.said = said
	}
	switch gentle := !slices.ContainsFunc(since, func(d disaster) bool { return d != stopped }); {
	case b.unsure: // an operation was under way, and may have been done before or after
	case gentle:
		if said != before && before != "" {
			return fmt.Errorf("it says %q, and said %q before", said, before)
		}
	case len(since) > 1: // where it stood between is not known
	case !slices.Contains(expected, tree.At):
		return fmt.Errorf("it came back at %q, and may at %v", tree.At, expected)
	case at == nil:
		return fmt.Errorf("it came back at %q, which nobody has taken", tree.At)
	case said != at.said:
		return fmt.Errorf("it came back at %q and says %q, and said %q there", tree.At, said, at.said)
	}
	b.moved(tree.At)
	if b.find(tree.At) == nil { // of a stop, or of an operation that was cut off
		b.suspend(kept{id: tree.At})
	}
	return nil
}

// orLost is errLost for an error that says so, if that may be.
func (b *box) orLost(err error, expected []string) error {
	switch {
	case client.KindOf(err) != client.Lost:
		return err
	case slices.Contains(expected, "") && !b.origin.durable || b.unsure:
		return errLost
	}
	return fmt.Errorf("it is lost, and may be at %v: %w", expected, err)
}

// rejoin attaches to the program again, by its session.
func (b *box) rejoin(ctx context.Context) error {
	if b.voice != nil {
		b.voice.close()
	}
	var session string
	err := through(ctx, func() error {
		all, err := b.sb.Sessions(ctx)
		var ended []string
		for _, s := range all {
			if len(s.Argv) > 0 && s.Argv[0] == "python3" {
				if s.Ended {
					ended = append(ended, fmt.Sprintf("%s: %d %s", s.ID, s.ExitCode, s.Reason))
				} else {
					session = s.ID
				}
			}
		}
		if err == nil && session == "" {
			err = fmt.Errorf("%w among %d; ended: %s", errNoProgram, len(all), strings.Join(ended, ", "))
		}
		return err
	})
	if err != nil {
		return err
	}
	return b.join(ctx, session)
}
