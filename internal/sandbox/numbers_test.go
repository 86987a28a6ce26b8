package sandbox_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/feature/featuretest"
	"github.com/sandtree/sandtree/internal/sandbox"
)

// devices prints each mount's path with what the kernel says of its device in
// mountinfo and by stat.
const devices = `
import json, os
out = {}
for line in open("/proc/self/mountinfo"):
    f = line.split()
    major, minor = f[2].split(":")
    out[f[4]] = [os.makedev(int(major), int(minor)), os.stat(f[4]).st_dev]
print(json.dumps(out))
`

// Mounts show the same numbers in every incarnation, each another one in one of
// them, and not the kernel's.
func TestMountsShowTheirNumbers(t *testing.T) {
	featuretest.Need(t, "device numbers")
	f := home(t)
	before := f.devices.Len()
	var (
		seen   [2]map[string][2]uint64
		bodies [2]*sandbox.Incarnation
	)
	for n := range seen {
		i := boot(t)
		bodies[n] = i
		out, code := run(t, i, sandbox.Command{Argv: []string{"python3", "-c", devices}})
		if err := json.Unmarshal([]byte(out), &seen[n]); err != nil || code != 0 {
			t.Fatalf("%d %v: %s", code, err, out)
		}
	}
	for _, i := range bodies {
		end(t, i)
	}
	if n := f.devices.Len(); n != before {
		t.Errorf("%d devices are claimed, %d were", n, before)
	}
	byNumber := map[uint64]uint64{}
	for path, is := range seen[0] {
		real, shown := is[0], is[1]
		if shown < unix.Mkdev(0, 0xff000) || seen[1][path][1] != shown {
			t.Errorf("%s shows %#x, and %#x in another incarnation", path, shown, seen[1][path][1])
		}
		if other, ok := byNumber[shown]; ok && other != real {
			t.Errorf("%s shows %#x for device %#x, which is device %#x, too", path, shown, real, other)
		}
		byNumber[shown] = real
	}
	if seen[0]["/"][1] != unix.Mkdev(0, 0xff000) || seen[0]["/"][0] == seen[1]["/"][0] || len(byNumber) < 7 {
		t.Errorf("the root is %v and %v, of %v", seen[0]["/"], seen[1]["/"], slices.Sorted(maps.Keys(seen[0])))
	}
}

// Programs remember numbers in checkpoints on disk: these stay.
func TestNumbersStay(t *testing.T) {
	got := sandbox.NumbersOf("/", "/dev/shm", "/sys/fs/cgroup", "/proc/acpi", "/sys/firmware", "/proc/acpi")
	if want := []int{0, 5, 7, 3680, 2949, 3680}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	var paths []string
	for i := range 300 {
		paths = append(paths, fmt.Sprint("/proc/", i))
	}
	all := sandbox.NumbersOf(paths...)
	slices.Sort(all)
	if len(slices.Compact(all)) != 300 || all[0] < 0x100 || all[299] >= 0x1000 {
		t.Errorf("300 paths have %v", all)
	}
}

func FuzzMountinfo(f *testing.F) {
	own, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(own)
	f.Add([]byte("36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n"))
	f.Add([]byte("1 1 0:x / /\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		devices, err := sandbox.ParseMountinfo(text)
		if err != nil {
			return
		}
		for path := range devices {
			if path == "" {
				t.Error("a mount without a path")
			}
		}
	})
}
