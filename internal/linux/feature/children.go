package feature

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// A child process of a probe runs a program of ours that needs no file of the
// machine: it waits for a signal, or exits at once.

// program is a static executable that holds code and nothing else.
func program(code []byte) ([]byte, error) {
	if len(code) == 0 {
		return nil, errAbsent
	}
	const base, header = 0x400000, 64 + 56
	size := uint64(header + len(code))
	p := []byte{0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	p = binary.LittleEndian.AppendUint16(p, 2) // ET_EXEC
	p = binary.LittleEndian.AppendUint16(p, elfMachine)
	p = binary.LittleEndian.AppendUint32(p, 1)
	for _, v := range []uint64{base + header, 64, 0} { // entry, program headers, sections
		p = binary.LittleEndian.AppendUint64(p, v)
	}
	p = binary.LittleEndian.AppendUint32(p, 0)
	for _, v := range []uint16{64, 56, 1, 0, 0, 0} {
		p = binary.LittleEndian.AppendUint16(p, v)
	}
	p = binary.LittleEndian.AppendUint32(p, 1) // PT_LOAD
	p = binary.LittleEndian.AppendUint32(p, 5) // read, execute
	for _, v := range []uint64{0, base, base, size, size, 0x1000} {
		p = binary.LittleEndian.AppendUint64(p, v)
	}
	return append(p, code...), nil
}

// start starts a child that runs code.
func start(code []byte, attr *syscall.SysProcAttr) (pid int, err error) {
	elf, err := program(code)
	if err != nil {
		return 0, err
	}
	fd, err := unix.MemfdCreate("probe", unix.MFD_CLOEXEC)
	if err != nil {
		return 0, fmt.Errorf("memfd_create: %w", err)
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, elf); err != nil {
		return 0, err
	}
	pid, err = syscall.ForkExec(fmt.Sprintf("/proc/self/fd/%d", fd), []string{"probe"}, &syscall.ProcAttr{Dir: "/", Sys: attr})
	if err != nil {
		return 0, fmt.Errorf("start a process: %w", err)
	}
	return pid, nil
}

func end(pid int) {
	_ = unix.Kill(pid, unix.SIGKILL)
	for {
		if _, err := unix.Wait4(pid, nil, unix.WALL, nil); err != unix.EINTR {
			return
		}
	}
}

// runExit runs a child to its end.
func runExit(attr *syscall.SysProcAttr) error {
	pid, err := start(exitCode, attr)
	if err != nil {
		return err
	}
	for {
		var st unix.WaitStatus
		_, err := unix.Wait4(pid, &st, unix.WALL, nil)
		if err == unix.EINTR {
			continue
		}
		if err == nil && (!st.Exited() || st.ExitStatus() != 0) {
			err = fmt.Errorf("the probe's process ended with %#x", uint32(st))
		}
		return err
	}
}

func namespaces(flags uintptr) *syscall.SysProcAttr {
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
	groups := []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	return &syscall.SysProcAttr{Cloneflags: flags, UidMappings: ids, GidMappings: groups}
}

func unshared(flags uintptr) *syscall.SysProcAttr { return &syscall.SysProcAttr{Unshareflags: flags} }

// probeCloneIntoCgroup clones a process into the top of the v2 hierarchy. A
// top that is a container's and has controllers refuses it by EBUSY, which is
// an answer too.
func probeCloneIntoCgroup() error {
	dir, err := unifiedMount()
	if err != nil {
		return err
	}
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", dir, err)
	}
	defer unix.Close(fd)
	err = runExit(&syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd})
	if errors.Is(err, unix.EBUSY) {
		return nil
	}
	return err
}

// unifiedMount finds the v2 hierarchy.
func unifiedMount() (string, error) {
	b, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 2 && f[2] == "cgroup2" {
			return filepath.Clean(f[1]), nil
		}
	}
	return "", fmt.Errorf("no cgroup2 mount: %w", errAbsent)
}

// probeSuspendSeccomp seizes a child with the option.
func probeSuspendSeccomp() error {
	pid, err := start(pauseCode, nil)
	if err != nil {
		return err
	}
	defer end(pid)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_, _, e := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, unix.PTRACE_O_SUSPEND_SECCOMP, 0, 0)
	return call("ptrace", e)
}
