package statdev_test

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/statdev"
)

// rounds makes the asking child measure: how often it asks.
const rounds = "STATDEV_ROUNDS"

// measure asks over and over and prints the time of one call in nanoseconds, the
// best of ten runs.
func measure(path string, n int) {
	var (
		st   unix.Stat_t
		best time.Duration
	)
	for range 10 {
		began := time.Now()
		for range n {
			_ = unix.Fstatat(unix.AT_FDCWD, path, &st, 0)
		}
		if took := time.Since(began); best == 0 || took < best {
			best = took
		}
	}
	fmt.Println(float64(best.Nanoseconds()) / float64(n))
}

// BenchmarkStat tells what a stat costs of whom, beside one that nothing follows,
// in turns so that the machine is the same.
func BenchmarkStat(b *testing.B) {
	dir, device := fileSystem(b)
	ask := func(user uint32) float64 {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), asker+"="+dir, rounds+"=20000")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
		out, err := cmd.Output()
		check(b, err)
		ns, err := strconv.ParseFloat(string(out[:len(out)-1]), 64)
		check(b, err)
		return ns
	}
	var alone, outside, inside float64
	for range b.N {
		alone += ask(0)
		a := attach(b)
		table := open(b, a, base)
		var c statdev.Claim
		check(b, table.Claim(&c, device, 1))
		outside += ask(0)
		inside += ask(base)
		table.Close()
		a.Close()
	}
	b.ReportMetric(alone/float64(b.N), "ns/alone")
	b.ReportMetric(outside/alone, "times-outside")
	b.ReportMetric(inside/alone, "times-inside")
}
