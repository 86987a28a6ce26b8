package cli_test

import (
	"bufio"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Signals that this side gets are the program's, and so is the exit code.
func TestSignalsAreForwarded(t *testing.T) {
	state := daemon(t)
	for name, tt := range map[string]struct {
		script string
		signal os.Signal
		code   int
	}{
		"it ends the program":  {"echo up; exec sleep 1000", unix.SIGTERM, 143},
		"the program knows it": {"trap 'echo caught; exit 9' INT; echo up; while :; do sleep 0.05; done", unix.SIGINT, 9},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := sandtree(state, "run", "--template", "test", "--name", "signals", "--rm", "--", "bash", "-c", tt.script)
			cmd.Stderr = os.Stderr
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			stuck := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
			defer stuck.Stop()
			lines := bufio.NewScanner(out)
			if !lines.Scan() || lines.Text() != "up" {
				t.Fatalf("the program said %q, %v", lines.Text(), lines.Err())
			}
			if err := cmd.Process.Signal(tt.signal); err != nil {
				t.Fatal(err)
			}
			for lines.Scan() {
				t.Log(lines.Text())
			}
			_ = cmd.Wait()
			if got := cmd.ProcessState.ExitCode(); got != tt.code {
				t.Errorf("exit code %d, want %d", got, tt.code)
			}
			if err := sandtree(state, "show", "signals").Run(); err == nil {
				t.Error("--rm left the sandbox")
			}
		})
	}
}
