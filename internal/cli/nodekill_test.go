package cli_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// killNode kills the daemon's unprivileged part.
func killNode(t *testing.T, state string) {
	t.Helper()
	out, err := sandtree(state, "info", "--json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var info struct {
		PID int `json:"pid"`
	}
	if err := json.Unmarshal(out, &info); err != nil || info.PID <= 1 {
		t.Fatalf("pid %d of the node: %v", info.PID, err)
	}
	if err := unix.Kill(info.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// A command that somebody is attached to goes on when the node is killed, and
// so does the attachment: nothing of its output is lost or shown twice.
func TestKillOfTheNodeUnderACommand(t *testing.T) {
	state := daemon(t)
	out, err := sandtree(state, "create", "--template", "test").Output()
	if err != nil {
		t.Fatal(err)
	}
	box := strings.TrimSpace(string(out))
	defer func() { _ = sandtree(state, "rm", "-f", box).Run() }()
	const lines = 300
	cmd := sandtree(state, "exec", "-i", box, "--", "bash", "-c",
		fmt.Sprintf("for i in $(seq 1 %d); do echo line $i; read x; done; exit 7", lines))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(stdout)
	for i := 1; i <= lines; i++ {
		l, err := r.ReadString('\n')
		if want := fmt.Sprintf("line %d\n", i); l != want {
			t.Fatalf("got %q, want %q: %v\n%s", l, want, err, &stderr)
		}
		if i == 100 || i == 200 {
			killNode(t, state)
			// The next command finds the node that takes its place.
			if out, err := sandtree(state, "ls").CombinedOutput(); err != nil {
				t.Errorf("ls after the kill: %v\n%s", err, out)
			}
		}
		if _, err := io.WriteString(in, "go on\n"); err != nil {
			t.Fatal(err)
		}
	}
	rest, _ := io.ReadAll(r)
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 7 || len(rest) > 0 {
		t.Errorf("ended with %v and %q\n%s", err, rest, &stderr)
	}
}
