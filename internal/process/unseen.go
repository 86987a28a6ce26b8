package process

import (
	"bytes"
	"fmt"

	"golang.org/x/sys/unix"
)

// unseen is about how much memory of their own processes have that are new since the last capture, in
// bytes: that one takes all of it, and what several of them share once. Who has little is left out.
func (l *Live) unseen() (sum uint64, err error) {
	pids, err := l.pids()
	if err != nil {
		return 0, err
	}
	seen := make(map[int]bool, len(l.procs))
	for _, p := range l.procs {
		seen[p.pid] = true
	}
	for _, pid := range pids {
		if pid == 1 || seen[pid] {
			continue
		}
		var size, resident, shared uint64
		text := l.readSmall(pid, "statm")
		if _, err := fmt.Sscan(string(text), &size, &resident, &shared); err != nil || resident < shared+leastUnseen/4096 {
			continue // it has ended, or has not much
		}
		// What is shared with others of them counts in part for each (proc_pid_smaps(5)).
		_, rest, _ := bytes.Cut(l.readSmall(pid, "smaps_rollup"), []byte("Pss_Anon:"))
		var kb uint64
		if _, err := fmt.Sscan(string(rest[:min(len(rest), 32)]), &kb); err == nil {
			sum += kb << 10
		}
	}
	return sum, nil
}

// leastUnseen is how much memory of a process is worth looking at, in bytes.
const leastUnseen = 4 << 20

// readSmall reads a small file of a process of /proc, by its number inside; nothing if that has ended.
func (l *Live) readSmall(pid int, name string) []byte {
	fd, err := unix.Openat(l.cfg.Proc, fmt.Sprintf("%d/%s", pid, name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer unix.Close(fd)
	buf := make([]byte, 4096)
	n, _ := unix.Read(fd, buf)
	return buf[:max(n, 0)]
}
