package image_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/sandtree/sandtree/internal/image"
	"github.com/sandtree/sandtree/internal/image/store"
	"github.com/sandtree/sandtree/internal/linux/roottest"
)

// TestMain makes the test binary a program that imports an image, for tests
// that need it in a process of its own: its arguments are the store and the
// source, and it says on its output when the import reached a layer.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[1] == "import" {
		os.Exit(importMain(os.Args[2], os.Args[3]))
	}
	os.Exit(m.Run())
}

func importMain(dir, src string) int {
	st, err := store.Open(dir)
	if err == nil {
		seen := 0
		_, err = image.Import(context.Background(), st, "n", src, image.Options{Progress: func(p image.Progress) {
			if p.Layer != seen {
				seen = p.Layer
				fmt.Println("layer", seen)
			}
		}})
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// importProcess prepares the test binary to import in a process of its own. It is
// copied, since another user may not reach where it was built.
func importProcess(t *testing.T, dir, src string) *exec.Cmd {
	t.Helper()
	self := must(os.Executable())(t)
	copied := filepath.Join(must(os.MkdirTemp("/tmp", "import-"))(t), "import")
	t.Cleanup(func() { os.RemoveAll(filepath.Dir(copied)) })
	if err := os.Chmod(filepath.Dir(copied), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(copied, must(os.ReadFile(self))(t), 0o755); err != nil {
		t.Fatal(err)
	}
	return exec.Command(copied, "import", dir, src)
}

// TestKilled kills an import at each layer; the next to open the store finds
// it as it was.
func TestKilled(t *testing.T) {
	var layers [][]byte
	for i := range 3 {
		layers = append(layers, pack(t, file(fmt.Sprint("f", i), strings.Repeat(fmt.Sprint(i), 3<<20))))
	}
	src := writeLayout(t, newImage(t, runtime.GOARCH, types.OCIUncompressedLayer, layers...))
	for at := 1; at <= len(layers); at++ {
		st, dir := newStore(t)
		kept := must(image.Import(t.Context(), st, "kept", writeFile(t, layers[0]), image.Options{}))(t)
		cmd := importProcess(t, dir, src)
		out := must(cmd.StdoutPipe())(t)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != fmt.Sprint("layer ", at); {
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // it was killed, or had just finished
		rs := must(must(store.Open(dir))(t).List())(t)
		for _, r := range rs {
			if r.Name != "kept" && len(r.Layers) != len(layers) {
				t.Errorf("killed at layer %d: half an image, %+v", at, r)
			}
		}
		if r, err := st.Get("kept"); err != nil || r.ID != kept.ID {
			t.Errorf("killed at layer %d: %+v, %v", at, r, err)
		}
	}
}

// TestUnprivileged imports as a user who owns nothing but the store.
func TestUnprivileged(t *testing.T) {
	roottest.Need(t, "becoming another user")
	// t.TempDir is closed to others.
	dir := must(os.MkdirTemp("/tmp", "store-"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	const nobody = 65534
	if err := os.Chown(dir, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	src := dir + ".tar"
	t.Cleanup(func() { os.Remove(src) })
	device := entry{}
	device.Name, device.Typeflag, device.Devmajor, device.Devminor = "null", '3', 1, 3
	owned := file("su", "x")
	owned.Uid, owned.Mode = 0, 0o4755
	owned.PAXRecords = map[string]string{"SCHILY.xattr.security.capability": "c", "SCHILY.xattr.trusted.x": "t"}
	if err := os.WriteFile(src, pack(t, device, owned), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := importProcess(t, dir, src)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	st := must(store.Open(dir))(t)
	at := mount(t, st, must(st.Get("n"))(t))
	if fi, err := os.Lstat(filepath.Join(at, "null")); err != nil || fi.Mode()&os.ModeCharDevice == 0 {
		t.Errorf("%v, %v", fi, err)
	}
	if fi, err := os.Lstat(filepath.Join(at, "su")); err != nil || fi.Mode()&os.ModeSetuid == 0 {
		t.Errorf("%v, %v", fi, err)
	}
}
