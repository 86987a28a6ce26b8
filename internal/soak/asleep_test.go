package soak

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/testdaemon"
)

// After a crash of the daemon, and before anything wakes a sandbox, its tree says
// where it will come back: not at a checkpoint that was in memory alone.
func TestTreeOfASandboxThatIsNotBackYet(t *testing.T) {
	ctx := t.Context()
	d := testdaemon.Start(t)
	c := d.Dial()
	sb, err := c.CreateSandbox(ctx, client.SandboxConfig{Template: "test"})
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, o := range []client.CheckpointOptions{{Durable: true}, {NotDurable: true}, {Durable: true}, {NotDurable: true}, {NotDurable: true}} {
		cp, err := sb.CheckpointWith(ctx, o)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, cp.ID)
	}
	if err := d.Restart(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	look := func(when string) {
		tree, err := sb.Tree(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var there, parents []string
		for _, cp := range tree.Checkpoints {
			there, parents = append(there, cp.ID), append(parents, cp.Parent)
		}
		if want := []string{ids[0], ids[2]}; !slices.Equal(there, want) || !slices.Equal(parents, []string{"", ids[0]}) || tree.At != ids[2] {
			t.Errorf("%s: it stands at %s and has %v below %v, of %v", when, tree.At, there, parents, ids)
		}
	}
	look("asleep")
	if end, err := sb.Run(ctx, client.Command{Argv: []string{"true"}}, client.Stdio{}); err != nil || end.ExitCode != 0 {
		t.Fatalf("%+v, %v", end, err)
	}
	look("awake")
}
