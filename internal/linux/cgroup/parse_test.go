package cgroup

import (
	"testing"

	"github.com/sandtree/sandtree/internal/fault"
)

const (
	hybridMounts = `31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
`
	hybridSelf = "9:name=systemd:/\n4:memory:/jobs/1\n1:cpu,cpuacct:/\n0::/\n"
	v2Mounts   = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 master:1 - cgroup2 cgroup2 rw,nsdelegate\n"
	v2Self     = "0::/system.slice/sandtree.service\n"
)

func TestDetectTells(t *testing.T) {
	never := func(string) bool { return false }
	for _, tt := range []struct {
		name, mounts, self string
		delegated          func(string) bool
		base, text         string
		memory             Version
		kind               fault.Kind
	}{
		{name: "hybrid", mounts: hybridMounts, self: hybridSelf, base: "/sys/fs/cgroup/unified", text: "hybrid (v1: memory,cpu)", memory: 1},
		{name: "v2", mounts: v2Mounts, self: v2Self, base: "/sys/fs/cgroup", text: "v2"},
		{name: "delegated", mounts: v2Mounts, self: v2Self, delegated: func(d string) bool { return d == "/sys/fs/cgroup/system.slice/sandtree.service" },
			base: "/sys/fs/cgroup/system.slice/sandtree.service", text: "v2"},
		{name: "in a group of ours below it", mounts: v2Mounts, self: "0::/system.slice/sandtree.service/sandtree-default/tp-1/supervisor\n",
			delegated: func(d string) bool { return d == "/sys/fs/cgroup/system.slice/sandtree.service" },
			base:      "/sys/fs/cgroup/system.slice/sandtree.service", text: "v2"},
		{name: "below another's delegated group", mounts: v2Mounts, self: "0::/user.slice/user@0.service/app.slice/shell.scope\n",
			delegated: func(d string) bool { return d == "/sys/fs/cgroup/user.slice/user@0.service" },
			base:      "/sys/fs/cgroup", text: "v2"},
		{name: "container with the host's cgroup namespace", self: "0::/docker/abc\n", base: "/sys/fs/cgroup", text: "v2",
			mounts: "30 23 0:26 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"},
		{name: "space in the mount point", self: "0::/\n", base: "/my cgroup", text: "v2", mounts: "30 23 0:26 / /my\\040cgroup rw - cgroup2 none rw\n"},
		{name: "read-only", self: "0::/\n", mounts: "30 23 0:26 / /sys/fs/cgroup ro - cgroup2 none rw\n", kind: fault.Permission},
		{name: "v1 alone", self: "4:memory:/\n", mounts: "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n", kind: fault.Unsupported},
		{name: "cut off", self: "0::/\n", mounts: "30 23 0:26 / /sys", kind: fault.Internal},
		{name: "bad own group", self: "nonsense\n", mounts: v2Mounts, kind: fault.Internal},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.delegated == nil {
				tt.delegated = never
			}
			l, err := detect(tt.mounts, tt.self, tt.delegated)
			if got := fault.KindOf(err); got != tt.kind {
				t.Fatalf("error %v of kind %q, want %q", err, got, tt.kind)
			}
			if err != nil {
				return
			}
			if l.unified.base != tt.base || l.String() != tt.text || l.Version(Memory) != tt.memory {
				t.Errorf("base %q, text %q, memory v%d", l.unified.base, l.String(), l.Version(Memory))
			}
		})
	}
}

func TestLimitsCheck(t *testing.T) {
	for _, l := range []Limits{{}, {MemoryBytes: 1 << 30, CPUs: 0.5, PIDs: 1}, {CPUs: 0.01}} {
		if err := l.Check(); err != nil {
			t.Errorf("%+v: %v", l, err)
		}
	}
	for _, l := range []Limits{{MemoryBytes: -1}, {MemoryBytes: 4096}, {CPUs: -1}, {CPUs: 0.001}, {PIDs: -1}, {PIDs: 1 << 40}} {
		if err := l.Check(); !fault.Is(err, fault.Invalid) {
			t.Errorf("%+v: %v", l, err)
		}
	}
}

func TestNamesThatCannotBeGroups(t *testing.T) {
	for _, n := range []string{"", ".", "..", "a/b", "cgroup.procs", "memory.max", "tasks", "a b", "a\nb"} {
		if err := checkName(n); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", n, err)
		}
	}
	if err := checkName("sb-abc_1"); err != nil {
		t.Error(err)
	}
}

func TestPressure(t *testing.T) {
	if got := parsePressure("some avg10=12.50 avg60=1.00 avg300=0.00 total=5\nfull avg10=99.00\n"); got != 12.5 {
		t.Errorf("got %g", got)
	}
	if got := parsePressure("garbage"); got != 0 {
		t.Errorf("got %g", got)
	}
}

func FuzzDetect(f *testing.F) {
	f.Add(hybridMounts, hybridSelf)
	f.Add(v2Mounts, v2Self)
	f.Add(`1 2 0:1 /\ /\04 rw - cgroup2 x y`+"\n", "0::/\n")
	f.Fuzz(func(t *testing.T, mounts, self string) {
		l, err := detect(mounts, self, func(string) bool { return len(mounts)%2 == 0 })
		if err == nil && l.unified.base == "" {
			t.Error("no base and no error")
		}
	})
}

func FuzzStatsFiles(f *testing.F) {
	f.Add("usage_usec 12\nuser_usec 3\n")
	f.Add("some avg10=1.5 avg60=0 avg300=0 total=0")
	f.Fuzz(func(t *testing.T, text string) {
		parseKeyed(text, func(string, uint64) {})
		if p := parsePressure(text); p < 0 || p > 100 {
			t.Errorf("pressure %g", p)
		}
	})
}
