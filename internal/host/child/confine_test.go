package child_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/host/child"
)

// roleConfined starts a child that tells what it can do.
func roleConfined([]string) error {
	r, err := child.NewReaper()
	if err != nil {
		return err
	}
	defer r.Close()
	dir, err := os.MkdirTemp("", "confined-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for _, d := range []string{"mine", "others"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "others", "secret"), nil, 0o600); err != nil {
		return err
	}
	s := spec("deeds", dir)
	s.Files = []*os.File{os.Stdout}
	s.Confined = &child.Confinement{
		Capabilities: []int{unix.CAP_CHOWN, unix.CAP_SYS_ADMIN},
		Writable:     []string{filepath.Join(dir, "mine")},
	}
	c, err := r.Start(s)
	if err != nil {
		return err
	}
	if reason := c.Reason(); reason != "exited with status 0" {
		return errors.New(reason)
	}
	return nil
}

// roleDeeds prints how what it tries ends.
func roleDeeds(args []string) error {
	out := os.NewFile(3, "out")
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(status)) {
		for _, field := range []string{"CapPrm", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp"} {
			if v, ok := strings.CutPrefix(line, field+":"); ok {
				fmt.Fprintf(out, "%s %s\n", field, strings.TrimSpace(v))
			}
		}
	}
	mine, others := filepath.Join(args[0], "mine"), filepath.Join(args[0], "others")
	_, socket := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	_, secret := os.ReadFile(filepath.Join(others, "secret"))
	for _, d := range []struct {
		what string
		err  error
	}{
		{"write mine", os.WriteFile(filepath.Join(mine, "f"), []byte("x"), 0o600)},
		{"chown mine", os.Chown(filepath.Join(mine, "f"), 7, 7)},
		{"rename mine", os.Rename(filepath.Join(mine, "f"), filepath.Join(mine, "g"))},
		{"node mine", unix.Mknod(filepath.Join(mine, "n"), unix.S_IFCHR, 0x103)},
		{"read others", secret},
		{"write others", os.WriteFile(filepath.Join(others, "f"), nil, 0o600)},
		{"move out", os.Rename(filepath.Join(mine, "g"), filepath.Join(others, "g"))},
		{"mount", unix.Mount("none", mine, "tmpfs", 0, "")},
		{"socket", socket},
		{"unshare", unix.Unshare(unix.CLONE_NEWNS)},
	} {
		var errno unix.Errno
		switch {
		case d.err == nil:
			fmt.Fprintf(out, "%s ok\n", d.what)
		case errors.As(d.err, &errno):
			fmt.Fprintf(out, "%s %s\n", d.what, unix.ErrnoName(errno))
		default:
			fmt.Fprintf(out, "%s %v\n", d.what, d.err)
		}
	}
	return nil
}

// A confined child of root's has the capabilities that it was given, and the files.
func TestConfinedChild(t *testing.T) {
	got := run(t, "confined")
	for _, want := range []string{
		"CapPrm 0000000000200001", "CapEff 0000000000200001", "CapBnd 0000000000200001", "NoNewPrivs 1", "Seccomp 2",
		"write mine ok", "chown mine ok", "rename mine ok", "node mine EPERM",
		"read others EACCES", "write others EACCES", "move out EACCES|move out EXDEV",
		"mount EPERM", "socket EPERM", "unshare EPERM",
	} {
		found := false
		for line := range strings.Lines(got) {
			for one := range strings.SplitSeq(want, "|") {
				found = found || strings.TrimSpace(line) == one
			}
		}
		if !found {
			t.Errorf("it does not say %q", want)
		}
	}
	if t.Failed() {
		t.Logf("it says:\n%s", got)
	}
}
