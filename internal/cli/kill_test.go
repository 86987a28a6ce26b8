package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

// familyOf sets a variable to the id of a template's family, from the output of
// template ls --json: familyof VAR NAME.
func familyOf(ts *testscript.TestScript, _ bool, args []string) {
	var all []struct {
		ID   string `json:"id"`
		Name string `json:"name"`
	}
	ts.Check(json.Unmarshal([]byte(ts.ReadFile("stdout")), &all))
	for _, t := range all {
		if t.Name == args[1] {
			ts.Setenv(args[0], t.ID)
			return
		}
	}
	ts.Fatalf("no template %s", args[1])
}

// killPart kills a part of the daemon as a crash would, by its role and family,
// and waits for its end: killpart supervisor FAMILY.
func killPart(ts *testscript.TestScript, _ bool, args []string) {
	want := strings.Join([]string{"sandtree", args[0], "--family", args[1], ""}, "\x00")
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	ts.Check(err)
	killed := 0
	for _, path := range all {
		// Reading the command line of somebody else's process may have to wait for it.
		if exe, err := os.Readlink(filepath.Join(filepath.Dir(path), "exe")); err != nil || exe != binary {
			continue
		}
		if text, err := os.ReadFile(path); err != nil || string(text) != want {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		ts.Check(err)
		fd, err := unix.PidfdOpen(pid, 0)
		ts.Check(err)
		ts.Check(unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0))
		_, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		ts.Check(err)
		ts.Check(unix.Close(fd))
		killed++
	}
	if killed != 1 {
		ts.Fatalf("%d processes are %q", killed, want)
	}
}
