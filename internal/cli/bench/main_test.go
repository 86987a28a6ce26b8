package bench

import (
	"fmt"
	"os"
	"strconv"
	"testing"
)

// The test binary is the target that the floors start.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == WorkCommand { // a process of the work: nothing
		os.Exit(0)
	}
	if len(os.Args) == 3 && os.Args[1] == TargetCommand {
		n, err := strconv.Atoi(os.Args[2])
		if err == nil {
			err = Target(n, os.Stdin, os.Stdout)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}
