package programs_test

import (
	"archive/tar"
	"bytes"
	"context"
	"embed"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/linux/feature/featuretest"
	"github.com/sandtree/sandtree/internal/testdaemon"
)

var (
	packages  = flag.Bool("packages", false, "run the programs that need packages, too; the root must have them")
	large     = flag.Bool("desktop", false, "run the programs of the desktop's root instead")
	rollbacks = flag.Int("rollbacks", 3, "rollbacks of each program")
	forks     = flag.Int("forks", 2, "copies of each program")
)

// within bounds a case, for a program that hangs: it takes seconds.
const within = 5 * time.Minute

//go:embed testdata
var testdata embed.FS

// dir is where the drivers are in a sandbox.
const dir = "/srv/programs"

// program is a case.
type program struct {
	name string
	argv []string // of the driver, in dir
	// after is a command that must succeed after each step, beside the driver;
	// it may be empty.
	after []string
	// build is a program of this module, by its directory, that goes to dir.
	build string
	// load: its driver tells how much the load does, and many checkpoints are taken under it.
	load bool
	// needs is a feature of the kernel's without which it would fail.
	needs string
}

func TestPrograms(t *testing.T) {
	if *rollbacks < 1 || *forks < 1 {
		t.Fatal("a rollback and a copy are the least")
	}
	c := testdaemon.Start(t).Dial()
	all := quick
	if *packages {
		all = append(all, packaged...)
	}
	if *large {
		all = desktop
	}
	for _, p := range all {
		t.Run(p.name, func(t *testing.T) {
			if p.needs != "" {
				featuretest.Need(t, p.needs)
			}
			prove(t, c, p)
		})
	}
}

// prove takes a program through checkpoints, rollbacks and forks.
func prove(t *testing.T, c *client.Client, p program) {
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	try, sb, d := launch(ctx, t, c, p)
	outside := func(sb *client.Sandbox) {
		t.Helper()
		if len(p.after) > 0 {
			try("outside", succeed(ctx, sb, p.after))
		}
	}

	try("mark", d.mark("first"))
	try("before all", d.keeps("first"))
	outside(sb)
	first, err := sb.Checkpoint(ctx, "first")
	try("checkpoint", err)
	try("after a checkpoint", d.keeps("first"))
	try("mark", d.mark("never"))
	try("before the rollback", d.keeps("first", "never"))

	// One checkpoint is of what was never restored, the other of what was.
	at, kept := first, []string{"first"}
	var second *client.Checkpoint
	var took time.Duration
	for i := range *rollbacks {
		result, err := sb.Rollback(ctx, at.ID)
		try("rollback", err)
		took += time.Duration(result.ElapsedNS)
		where := fmt.Sprintf("after rollback %d, to %s,", i+1, at.Name)
		try(where, d.keeps(kept...))
		outside(sb)
		name := fmt.Sprintf("rollback%d", i+1)
		try(where, d.mark(name))
		try(where, d.keeps(append(kept, name)...))
		if i == 0 {
			second, err = sb.Checkpoint(ctx, "second")
			try("second checkpoint", err)
			try("after the second checkpoint", d.keeps("first", name))
		}
		if at, kept = first, []string{"first"}; i%2 == 0 {
			at, kept = second, []string{"first", "rollback1"}
		}
	}

	result, err := at.Fork(ctx, *forks)
	try("fork", err)
	copies := make([]*driver, len(result.Sandboxes))
	for i, f := range result.Sandboxes {
		t.Cleanup(func() { try("remove a copy", f.Remove(context.WithoutCancel(ctx), true)) })
		copies[i], err = join(ctx, f)
		try("join a copy", err)
		try("in a copy", copies[i].keeps(kept...))
		try("in a copy", copies[i].mark(fmt.Sprintf("copy%d", i+1)))
	}
	for i, f := range result.Sandboxes { // beside each other
		try("in a copy", copies[i].keeps(append(kept, fmt.Sprintf("copy%d", i+1))...))
		outside(f)
	}
	if err := d.keeps(append([]string{"first"}, lastMark(*rollbacks)...)...); err != nil {
		t.Errorf("beside the copies: %v", err)
	}
	t.Logf("frozen %.1f ms and %.1f ms, %d processes, %d threads, %.1f MB and %.1f MB; a rollback %.1f ms, a fork %.1f ms",
		ms(first.FrozenNS), ms(second.FrozenNS), first.Processes, first.Threads,
		float64(first.DirtyBytes)/1e6, float64(second.DirtyBytes)/1e6,
		ms(took.Nanoseconds())/float64(*rollbacks), ms(sum(result.ElapsedNS))/float64(*forks))
}

// launch starts a program's driver in a sandbox of its own, which is removed at the test's
// end. What fails in try ends the test.
func launch(ctx context.Context, t *testing.T, c *client.Client, p program) (try func(what string, err error), sb *client.Sandbox, d *driver) {
	try = func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v %s", what, err, client.HintOf(err))
		}
	}
	sb, err := c.CreateSandbox(ctx, client.SandboxConfig{Template: "test"})
	try("create", err)
	t.Cleanup(func() { try("remove", sb.Remove(context.WithoutCancel(ctx), true)) })
	try("install", install(ctx, t, sb, p))
	d, err = start(ctx, sb, client.Command{Argv: p.argv, Dir: dir})
	try("start", err)
	return try, sb, d
}

// lastMark lists what the sandbox keeps after n rollbacks beside "first".
func lastMark(n int) []string {
	last := fmt.Sprintf("rollback%d", n)
	if n > 1 && n%2 == 0 {
		return []string{"rollback1", last}
	}
	return []string{last}
}

func ms(ns int64) float64 { return float64(ns) / 1e6 }

func sum(all []int64) (n int64) {
	for _, v := range all {
		n += v
	}
	return n
}

// succeed runs a command that must end with status 0.
func succeed(ctx context.Context, sb *client.Sandbox, argv []string) error {
	var said bytes.Buffer
	end, err := sb.Run(ctx, client.Command{Argv: argv, Dir: dir, NoStdin: true}, client.Stdio{Out: &said, Err: &said})
	if err == nil && end.ExitCode != 0 {
		err = fmt.Errorf("%v ended with %d: %s", argv, end.ExitCode, strings.TrimSpace(said.String()))
	}
	return err
}

// install copies the drivers, and what a case has built, to dir.
func install(ctx context.Context, t *testing.T, sb *client.Sandbox, p program) error {
	files := []fs.FS{testdata}
	if p.build != "" {
		built := t.TempDir()
		testdaemon.Build(t, built, p.build)
		files = append(files, os.DirFS(built))
	}
	r, w := io.Pipe()
	go func() { _ = w.CloseWithError(pack(w, files)) }()
	_, err := sb.CopyTo(ctx, "/", "0:0", r)
	return errors.Join(err, r.Close())
}

// pack writes all files as a tar, without their directories.
func pack(w io.Writer, trees []fs.FS) error {
	t := tar.NewWriter(w)
	if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir[1:], Mode: 0o755}); err != nil {
		return err
	}
	for _, tree := range trees {
		err := fs.WalkDir(tree, ".", func(name string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			content, err := fs.ReadFile(tree, name)
			if err != nil {
				return err
			}
			h := &tar.Header{Typeflag: tar.TypeReg, Name: path.Join(dir[1:], path.Base(name)), Mode: 0o755, Size: int64(len(content))}
			if err := t.WriteHeader(h); err != nil {
				return err
			}
			_, err = t.Write(content)
			return err
		})
		if err != nil {
			return err
		}
	}
	return t.Close()
}
