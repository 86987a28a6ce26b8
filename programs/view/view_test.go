package view

import (
	"fmt"
	"os/exec"
	"testing"
)

func TestTakeSeesAProcess(t *testing.T) {
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close(); _ = cmd.Wait() }()
	v, err := Take()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"command": "cat", "fd 0 flags": "00"} {
		if got := v[fmt.Sprintf("%d %s", cmd.Process.Pid, name)]; got != want {
			t.Errorf("%s is %q, not %q", name, got, want)
		}
	}
}

func TestCompare(t *testing.T) {
	a := View{"2 command": "x", "2 fd 3 pos": "5", "2 fd 4": "pipe", "3 command": "short"}
	b := View{"2 command": "x", "2 fd 3 pos": "6", "2 fd 4": "pipe"}
	c := View{"2 command": "x", "2 fd 3 pos": "9", "2 fd 4": "socket", "4 command": "new"}
	got := Compare(a, c, Moving(a, b))
	if fmt.Sprint(got) != `[2 fd 4: was "pipe", is "socket" 4 command: was not there, is "new"]` {
		t.Errorf("differences are %v", got)
	}
}
