package node_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/client"
	"github.com/sandtree/sandtree/internal/fault"
)

// rootTar is the tar of a root file system with a file or two.
func rootTar(t *testing.T) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []tar.Header{
		{Name: "etc/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "etc/passwd", Typeflag: tar.TypeReg, Mode: 0o644, Size: 5},
		{Name: "bin", Typeflag: tar.TypeSymlink, Linkname: "usr/bin"},
	} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			io.WriteString(w, "root:")
		}
	}
	w.Close()
	return b.Bytes()
}

func TestImagesAndTemplates(t *testing.T) {
	d, c := start(t)
	ctx := t.Context()
	var reports int
	i, err := c.ImportImage(ctx, client.ImportConfig{Name: "tiny", OnProgress: func(client.Progress) { reports++ }}, bytes.NewReader(rootTar(t)))
	if err != nil || i.Name != "tiny" || len(i.Layers) != 1 || i.SizeBytes == 0 || reports == 0 {
		t.Fatalf("import: %+v, %d reports, %v", i, reports, err)
	}
	_, err = c.ImportImage(ctx, client.ImportConfig{Name: "tiny"}, bytes.NewReader(rootTar(t)))
	wantKind(t, err, fault.Exists)
	for what, src := range map[string]io.Reader{
		"half a tar": bytes.NewReader(rootTar(t)[:700]),
		"no tar":     strings.NewReader(strings.Repeat("this is no tar. ", 500)),
		"nothing":    strings.NewReader(""),
	} {
		_, err = c.ImportImage(ctx, client.ImportConfig{Name: "broken"}, src)
		if client.KindOf(err) != client.Invalid || strings.Contains(err.Error(), d.dir) {
			t.Errorf("%s: %v (%s)", what, err, client.KindOf(err))
		}
	}
	// A source that fails halfway is no shorter image.
	cut := io.MultiReader(bytes.NewReader(rootTar(t)), failing{})
	if _, err = c.ImportImage(ctx, client.ImportConfig{Name: "cut"}, cut); err == nil || !strings.Contains(err.Error(), "disk on fire") {
		t.Errorf("a failing source: %v", err)
	}
	_, err = c.ImportImage(ctx, client.ImportConfig{Name: "-x"}, bytes.NewReader(rootTar(t)))
	wantKind(t, err, fault.Invalid)
	all, err := c.Images(ctx)
	if err != nil || len(all) != 1 || all[0].ID != i.ID {
		t.Errorf("images: %+v, %v", all, err)
	}
	// The client that failed has not waited for the daemon to notice.
	eventually(t, "uploads are gone", func() bool {
		left, err := os.ReadDir(filepath.Join(d.dir, "node", "uploads"))
		return err == nil && len(left) == 0
	})

	tp, err := c.CreateTemplate(ctx, client.TemplateConfig{
		Name: "t", Image: "tiny", Start: "echo started; exec sleep 1000", Env: map[string]string{"A": "template", "B": "template"},
		Resources: client.Resources{PIDs: 50, MemoryBytes: 64 << 20},
	})
	if err != nil || tp.ImageID != i.ID || len(tp.Layers) != 1 {
		t.Fatalf("template: %+v, %v", tp, err)
	}
	_, err = c.CreateTemplate(ctx, client.TemplateConfig{Name: "t", Image: "tiny"})
	wantKind(t, err, fault.Exists)
	_, err = c.CreateTemplate(ctx, client.TemplateConfig{Name: "u", Image: "none"})
	wantKind(t, err, fault.NotFound)
	_, err = c.CreateTemplate(ctx, client.TemplateConfig{Name: "../u", Image: "tiny"})
	wantKind(t, err, fault.Invalid)
	wantKind(t, c.RemoveImage(ctx, "tiny"), fault.Conflict)

	sb, err := c.CreateSandbox(ctx, client.SandboxConfig{Template: "t", Env: map[string]string{"B": "sandbox"}, Resources: client.Resources{PIDs: 9}})
	if err != nil || sb.Resources != (client.Resources{PIDs: 9, MemoryBytes: 64 << 20}) || sb.StartSession == "" {
		t.Fatalf("sandbox: %+v, %v", sb, err)
	}
	a, err := c.SessionHandle(sb.StartSession).Attach(ctx, client.AttachOptions{From: &client.Position{}})
	if err != nil {
		t.Fatal(err)
	}
	if e, err := a.Next(); err != nil || string(e.(client.Output).Data) != "started\n" {
		t.Errorf("start command: %v, %v", e, err)
	}
	a.Close()
	cmd := sh("echo $A $B $C")
	cmd.Env = map[string]string{"C": "exec"}
	var out bytes.Buffer
	if _, err := sb.Run(ctx, cmd, client.Stdio{Out: &out}); err != nil || out.String() != "template sandbox exec\n" {
		t.Errorf("environment: %q, %v", out.String(), err)
	}
	if err := c.RemoveTemplate(ctx, tp.ID, true); err != nil {
		t.Fatal(err)
	}
	if err := c.RemoveImage(ctx, i.ID); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Join(d.dir, "images", "layers")); err != nil || len(left) > 0 {
		t.Errorf("layers are left: %v, %v", left, err)
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errors.New("disk on fire") }

func TestFiles(t *testing.T) {
	_, c := start(t)
	ctx := t.Context()
	sb := create(t, c, "")
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
	if n, err := sb.WriteFile(ctx, client.WriteConfig{Path: "/f", Mode: 0o4750, UID: 7, GID: 8}, bytes.NewReader(big)); err != nil || n != int64(len(big)) {
		t.Fatalf("%d, %v", n, err)
	}
	i, err := sb.Stat(ctx, "/f", false)
	if err != nil || i.Size != int64(len(big)) || i.Mode&0o7777 != 0o4750 || i.UID != 7 || i.GID != 8 {
		t.Errorf("%+v, %v", i, err)
	}
	var got bytes.Buffer
	if err := sb.ReadFile(ctx, "f", &got); err != nil || !bytes.Equal(got.Bytes(), big) {
		t.Errorf("%d bytes, %v", got.Len(), err)
	}
	r, err := sb.CopyTo(ctx, "/", "3:4", bytes.NewReader(rootTar(t)))
	if err != nil || r.Files != 3 || r.Bytes != 5 {
		t.Errorf("%+v, %v", r, err)
	}
	if i, err := sb.Stat(ctx, "/etc/passwd", false); err != nil || i.UID != 3 || i.GID != 4 {
		t.Errorf("%+v, %v", i, err)
	}
	got.Reset()
	if err := sb.CopyFrom(ctx, "/etc", false, &got); err != nil {
		t.Fatal(err)
	}
	tr := tar.NewReader(&got)
	for _, want := range []string{"etc/", "etc/passwd"} {
		if h, err := tr.Next(); err != nil || h.Name != want || h.Uid != 3 {
			t.Errorf("%+v, %v, want %s", h, err, want)
		}
	}
	_, err = sb.Stat(ctx, "/none", false)
	wantKind(t, err, fault.NotFound)
	wantKind(t, sb.ReadFile(ctx, "/none", io.Discard), fault.NotFound)
	wantKind(t, sb.CopyFrom(ctx, "/none", false, io.Discard), fault.NotFound)
	_, err = sb.CopyTo(ctx, "/none", "", bytes.NewReader(rootTar(t)))
	wantKind(t, err, fault.NotFound)
	_, err = sb.CopyTo(ctx, "/", "root", bytes.NewReader(rootTar(t)))
	wantKind(t, err, fault.Invalid)
	_, err = sb.CopyTo(ctx, "/", "", strings.NewReader(strings.Repeat("no tar", 1<<20)))
	wantKind(t, err, fault.Invalid)
}

func TestFullDisk(t *testing.T) {
	var dir string
	_, c := startIn(t, func(d string) {
		dir = d
		if err := unix.Mount("tmpfs", d, "tmpfs", 0, "size=32m"); err != nil {
			t.Skip(err)
		}
		// The commands stand in it, and end a moment after who started them.
		t.Cleanup(func() { eventually(t, "unmounted", func() bool { return unix.Unmount(d, 0) == nil }) })
	})
	ctx := t.Context()
	sb := create(t, c, "before")
	flood, err := sb.Start(ctx, sh("head -c 64000000 /dev/zero | tr '\\0' 'x'; exec cat"))
	if err != nil {
		t.Fatal(err)
	}
	ballast := filepath.Join(dir, "ballast")
	f, err := os.Create(ballast)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	f.Close()
	// The flood has eaten the rest, or the ballast has.
	eventually(t, "a full disk", func() bool {
		err := os.WriteFile(filepath.Join(dir, "probe"), make([]byte, 64<<10), 0o600)
		os.Remove(filepath.Join(dir, "probe"))
		return errors.Is(err, unix.ENOSPC)
	})
	failed := false
	for range 200 {
		if _, err := sb.Start(ctx, sh("true")); err != nil {
			failed = true
			wantKind(t, err, fault.Exhausted)
			break
		}
	}
	_, err = c.ImportImage(ctx, client.ImportConfig{Name: "big"}, bytes.NewReader(bytes.Repeat(rootTar(t), 100)))
	wantKind(t, err, fault.Exhausted)
	t.Logf("exec failed: %v", failed)
	if _, err := c.Info(ctx); err != nil {
		t.Errorf("info on a full disk: %v", err)
	}
	if all, err := c.Sandboxes(ctx); err != nil || len(all) != 1 {
		t.Errorf("list on a full disk: %v, %v", all, err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	// Attached, it goes no further than its reader; the disk is still small.
	if err := flood.Kill(ctx, 9, ""); err != nil {
		t.Fatal(err)
	}
	if out, _, _ := run(t, sb, "echo works", ""); out != "works\n" {
		t.Errorf("after the full disk: %q", out)
	}
	if err := sb.Remove(ctx, true); err != nil {
		t.Error(err)
	}
	create(t, c, "after")
}
