package cgroup

import (
	"strconv"
	"strings"

	"github.com/sandtree/sandtree/internal/fault"
)

// mount is one cgroup mount of /proc/self/mountinfo.
type mount struct {
	root     string // directory of the hierarchy that is mounted
	point    string
	readOnly bool
	v2       bool
	options  []string // super options: for v1 controllers and name=
}

// parseMounts picks the cgroup mounts from the text of /proc/self/mountinfo
// (proc_pid_mountinfo(5)), in its order.
func parseMounts(text string) ([]mount, error) {
	var ms []mount
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		sep := -1 // ends the optional fields that begin at 6
		for i := 6; i < len(f); i++ {
			if f[i] == "-" {
				sep = i
				break
			}
		}
		if sep < 0 || len(f) < sep+4 {
			return nil, fault.New(fault.Internal, "mountinfo: line %q has too few fields", line)
		}
		fstype := f[sep+1]
		if fstype != "cgroup" && fstype != "cgroup2" {
			continue
		}
		ms = append(ms, mount{
			root:     unescape(f[3]),
			point:    unescape(f[4]),
			readOnly: hasOption(strings.Split(f[5], ","), "ro"),
			v2:       fstype == "cgroup2",
			options:  strings.Split(f[sep+3], ","),
		})
	}
	return ms, nil
}

func hasOption(options []string, name string) bool {
	for _, o := range options {
		if o == name {
			return true
		}
	}
	return false
}

// unescape undoes the octal escapes of mountinfo (\040 for a space).
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+4 <= len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// parseSelf reads the text of /proc/PID/cgroup (cgroups(7)). The result maps
// each controller, "name=X" for a named hierarchy and "" for v2, to the path
// of the process's group in it.
func parseSelf(text string) (map[string]string, error) {
	paths := map[string]string{}
	for line := range strings.Lines(text) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) != 3 || !strings.HasPrefix(f[2], "/") {
			return nil, fault.New(fault.Internal, "/proc/PID/cgroup: cannot read line %q", line)
		}
		for _, c := range strings.Split(f[1], ",") {
			paths[c] = f[2]
		}
	}
	return paths, nil
}

// parseKeyed reads a flat keyed file ("key value" lines), such as cpu.stat,
// and calls each with every pair. Lines of another shape are skipped: kernels
// add some.
func parseKeyed(text string, each func(key string, value uint64)) {
	for line := range strings.Lines(text) {
		k, v, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			continue
		}
		if n, err := strconv.ParseUint(v, 10, 64); err == nil {
			each(k, n)
		}
	}
}
