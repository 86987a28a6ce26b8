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
	a := View{"2 command": "x", "2 fd 3 pos": "5", "2 fd 4": "pipe", "2 thread 2 status Name": "x", "3 command": "short", "5 command": ""}
	still := View{"2 command": "x", "2 fd 3 pos": "6", "2 fd 4": "pipe", "2 thread 2 status Name": "x", "3 command": "short", "5 command": ""}
	gone := View{"2 command": "x", "2 fd 3 pos": "6", "2 fd 4": "pipe", "2 thread 2 status Name": "x", "5 command": ""}
	c := View{
		"2 command": "x", "2 fd 3 pos": "9", "2 fd 4": "socket", "2 thread 2 status Name": "x", "2 thread 5 status Name": "y", "2 thread 5 stat state": "S",
		"4 command": "new", "4 fd 0": "pipe", "4 thread 4 status Name": "new",
	}
	for _, x := range []struct {
		later View
		want  string
	}{
		{still, `[2 fd 4: was "pipe", is "socket" 2 thread 5: was not there, is "y" 3: was "short", is not there 4: was not there, is "new" 5: was "without command", is not there]`},
		// Where processes come and go, another one says nothing.
		{gone, `[2 fd 4: was "pipe", is "socket" 2 thread 5: was not there, is "y" 5: was "without command", is not there]`},
	} {
		if got := fmt.Sprint(Compare(a, c, Moving(a, x.later))); got != x.want {
			t.Errorf("differences are %v, not %v", got, x.want)
		}
	}
}
