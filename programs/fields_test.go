package programs_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/testdaemon"
	"github.com/sandtree/sandtree/programs/view"
)

// What /proc says of processes that have of everything is the same after a checkpoint, a rollback, in a copy, and
// when the sandbox comes back from the disk, but for what is listed as known.
func TestFields(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	c := testdaemon.Start(t).Dial()
	try := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v %s", what, err, client.HintOf(err))
		}
	}
	p := program{name: "fields", argv: []string{"python3", "fields.py"}, build: "programs/view/look"}
	sb, err := c.CreateSandbox(ctx, client.SandboxConfig{Template: "test"})
	try("create", err)
	t.Cleanup(func() { try("remove", sb.Remove(context.WithoutCancel(ctx), true)) })
	try("install", install(ctx, t, sb, p))
	_, err = start(ctx, sb, client.Command{Argv: p.argv, Dir: dir})
	try("start", err)

	look := func(sb *client.Sandbox) view.View {
		t.Helper()
		v, err := wholeView(ctx, sb)
		try("look", err)
		return v
	}
	before := look(sb)
	moving := view.Moving(before, look(sb))
	seen := map[string]bool{}
	compare := func(sb *client.Sandbox, after view.Occasion) {
		t.Helper()
		differences := view.Compare(before, look(sb), moving)
		var unknown []string
		for _, d := range differences {
			if k := view.Knows(before, d, after); k != nil {
				seen[k.Field] = true
			} else {
				unknown = append(unknown, d.String())
			}
		}
		t.Logf("%s: %d of %d fields differ", after, len(differences), len(before))
		if len(unknown) > 0 {
			t.Errorf("%s: %d fields differ that should not:\n%s", after, len(unknown), strings.Join(unknown, "\n"))
		}
	}
	k, err := sb.Checkpoint(ctx, "")
	try("checkpoint", err)
	compare(sb, view.Live)
	_, err = sb.Rollback(ctx, k.ID)
	try("rollback", err)
	compare(sb, view.Rollback)
	_, err = sb.Checkpoint(ctx, "")
	try("checkpoint of what was restored", err)
	compare(sb, view.Rollback)
	copies, err := k.Fork(ctx, 1)
	try("fork", err)
	compare(copies.Sandboxes[0], view.Copy)
	try("remove the copy", copies.Sandboxes[0].Remove(ctx, true))
	_, err = sb.Hibernate(ctx)
	try("hibernate", err)
	_, err = sb.Resume(ctx)
	try("resume", err)
	compare(sb, view.Disk)
	d, err := join(ctx, sb)
	if err == nil {
		err = d.keeps()
	}
	try("in the end", err)
	for _, k := range view.Known {
		if !seen[k.Field] && !k.Sometimes {
			t.Errorf("%q is listed as different, and never was", k.Field)
		}
	}
}

// wholeView has look, of dir, tell what it sees.
func wholeView(ctx context.Context, sb *client.Sandbox) (view.View, error) {
	var out, said bytes.Buffer
	end, err := sb.Run(ctx, client.Command{Argv: []string{"./look"}, Dir: dir, NoStdin: true}, client.Stdio{Out: &out, Err: &said})
	if err == nil && end.ExitCode != 0 {
		err = errors.New(said.String())
	}
	if err != nil {
		return nil, err
	}
	var v view.View
	return v, json.Unmarshal(out.Bytes(), &v)
}

// The document lists the same differences as the code.
func TestKnownDifferencesAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/limits.md")
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	want.WriteString("| field | since | why |\n|---|---|---|\n")
	for _, k := range view.Known {
		fmt.Fprintf(&want, "| %s | %s | %s |\n", k.Field, k.Since, k.Why)
	}
	if !strings.Contains(string(text), "\n"+want.String()+"\n") {
		t.Errorf("docs/limits.md has not exactly this table:\n%s", &want)
	}
}
