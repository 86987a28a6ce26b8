package bench

import (
	"os/exec"
	"syscall"
)

// sleeper starts a sleep in namespaces of its own.
func sleeper() (end func(), err error) {
	cmd := exec.Command("sleep", "1000000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: newNamespaces, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }, nil
}
