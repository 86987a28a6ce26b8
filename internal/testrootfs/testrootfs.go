// Package testrootfs finds the root that tests boot: a tar file of a minimal
// Debian or Ubuntu with bash, coreutils, procps, python3 and util-linux.
//
// scripts/test-rootfs builds it once per machine, with mmdebstrap from the
// machine's own package sources, under ${XDG_CACHE_HOME:-/var/cache}/sandtree.
package testrootfs

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Path returns the absolute name of the tar file, and builds it where it is
// missing, which takes a minute or two. The environment variable
// SANDTREE_TEST_ROOTFS names another file. A test on a machine that cannot
// build it fails: what tests need is installed by `make test`.
func Path(t testing.TB) string {
	t.Helper()
	cmd := exec.Command(filepath.Join(moduleRoot(t), "scripts", "test-rootfs"))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("build the root that tests boot: %v\n%s", err, &stderr)
	}
	path := strings.TrimSpace(string(out))
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("the root that tests boot: %v", err)
	}
	return path
}

// moduleRoot returns the directory of go.mod, above the directory of the
// package under test, where go test starts the test binary.
func moduleRoot(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			t.Fatal("no go.mod above the working directory")
		}
		dir = up
	}
}
