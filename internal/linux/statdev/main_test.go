package statdev_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// base begins a range of users that nobody has.
const base = 0x7ffd0000

// asker is the role of a child: another user, who asks for devices and says
// what it was told.
const asker = "STATDEV_ASK"

func TestMain(m *testing.M) {
	if path, ok := os.LookupEnv(asker); ok {
		if n, err := strconv.Atoi(os.Getenv(rounds)); err == nil {
			measure(path, n)
			os.Exit(0)
		}
		if err := ask(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func ask(path string) error {
	devices := map[string]uint64{}
	tell := func(call string, dev uint64, err error) error {
		devices[call] = dev
		if err != nil {
			return fmt.Errorf("%s: %w", call, err)
		}
		return nil
	}
	var st unix.Stat_t
	err := unix.Fstatat(unix.AT_FDCWD, path, &st, 0)
	if err := tell("newfstatat", st.Dev, err); err != nil {
		return err
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	err = unix.Fstat(fd, &st)
	if err := tell("newfstat", st.Dev, err); err != nil {
		return err
	}
	for name, call := range map[string]uintptr{"newstat": unix.SYS_STAT, "newlstat": unix.SYS_LSTAT} {
		dev, err := stat(call, path)
		if err := tell(name, dev, err); err != nil {
			return err
		}
	}
	var stx unix.Statx_t
	err = unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_BASIC_STATS, &stx)
	if err := tell("statx", unix.Mkdev(stx.Dev_major, stx.Dev_minor), err); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(devices)
}

// askAs asks as a user. It returns st_dev of the path by the name of the call.
func askAs(t testing.TB, user uint32, path string) (devices map[string]uint64) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), asker+"="+path)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, &devices)
	}
	if err != nil {
		t.Fatal(err)
	}
	return devices
}
