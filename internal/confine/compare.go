package confine

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// ProcStatus is how a process is confined, read from the host's /proc: field
// name to value. Two processes that stand behind the same walls have equal
// ones, whichever sandbox of a family they are in.
type ProcStatus map[string]string

// Difference is a field in which two processes are confined differently.
type Difference struct {
	Field, A, B string
	// Known says why the difference has to be; empty for one that nobody
	// expects.
	Known string
}

func (d Difference) String() string {
	s := fmt.Sprintf("%s: %q, %q", d.Field, d.A, d.B)
	if d.Known != "" {
		s += " (" + d.Known + ")"
	}
	return s
}

// programFields are the fields of /proc/PID/status that tell what a program
// does and not what it may do. A new field of a newer kernel is none of them,
// so it is compared.
var programFields = []string{
	"Name", "Umask", "State", "Tgid", "Ngid", "Pid", "PPid", "TracerPid", "FDSize", "Threads", "Kthread",
	"NStgid", "NSpid", "NSpgid", "NSsid", // their depth is compared
	"VmPeak", "VmSize", "VmLck", "VmPin", "VmHWM", "VmRSS", "RssAnon", "RssFile", "RssShmem", "VmData", "VmStk",
	"VmExe", "VmLib", "VmPTE", "VmSwap", "HugetlbPages", "CoreDumping", "untag_mask",
	"SigQ", "SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt",
	"voluntary_ctxt_switches", "nonvoluntary_ctxt_switches",
}

// knownDifferences are between a booted process (a) and a restored one (b).
var knownDifferences = map[string]string{
	"proc owner": "the memory of a restored process belongs to the host's user namespace, so that while it is not " +
		"dumpable its /proc files belong to the host's root",
}

// namespaceKinds are those of /proc/PID/ns.
var namespaceKinds = []string{"cgroup", "ipc", "mnt", "net", "pid", "pid_for_children", "time", "time_for_children", "user", "uts"}

// ReadStatus reads how process pid is confined; init is PID 1 of its sandbox.
// Both are numbers of our own pid namespace. A process that ended meanwhile is
// [fault.NotFound].
func ReadStatus(pid, init int) (ProcStatus, error) {
	s := ProcStatus{}
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	for _, read := range []func() error{
		func() error { return s.status(dir) },
		func() error { return s.limits(dir) },
		func() error { return s.namespaces(dir, init) },
		func() error { return s.cgroups(dir, init) },
		func() error { return s.small(dir) },
		func() error { return s.scheduling(pid) },
	} {
		if err := read(); err != nil {
			kind := fault.Internal
			if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
				kind = fault.NotFound
			}
			return nil, fault.New(kind, "read how process %d is confined: %w", pid, err)
		}
	}
	return s, nil
}

func (s ProcStatus) status(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(b)) {
		k, v, _ := strings.Cut(line, ":")
		f := strings.Fields(v)
		if k == "NSpid" {
			s["pid namespaces"] = strconv.Itoa(len(f))
		}
		if !slices.Contains(programFields, k) {
			s[k] = strings.Join(f, " ")
		}
	}
	return nil
}

func (s ProcStatus) limits(dir string) error {
	b, err := os.ReadFile(filepath.Join(dir, "limits"))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(b)) {
		// Columns have fixed places: fs/proc/base.c, "%-25s %-20s %-20s".
		if len(line) > 26 && !strings.HasPrefix(line, "Limit ") {
			s["limit "+strings.ToLower(strings.TrimSpace(line[:26]))] = strings.Join(strings.Fields(line[26:]), " ")
		}
	}
	return nil
}

// namespaces compares with PID 1 and with ourselves, as the numbers differ in
// each sandbox.
func (s ProcStatus) namespaces(dir string, init int) error {
	for _, kind := range namespaceKinds {
		own, err := os.Readlink(filepath.Join(dir, "ns", kind))
		if errors.Is(err, os.ErrNotExist) {
			continue // a kernel without this kind
		}
		if err != nil {
			return err
		}
		first, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", init, kind))
		if err != nil {
			return err
		}
		if kind == "time" { // PID 1 is not in the one that it made for its children
			if first, err = os.Readlink(fmt.Sprintf("/proc/%d/ns/time_for_children", init)); err != nil {
				return err
			}
		}
		host, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			return err
		}
		switch own {
		case host:
			s["namespace "+kind] = "the host's"
		case first:
			s["namespace "+kind] = "the sandbox's"
		default:
			s["namespace "+kind] = "another"
		}
	}
	return nil
}

func (s ProcStatus) cgroups(dir string, init int) error {
	own, err := os.ReadFile(filepath.Join(dir, "cgroup"))
	if err != nil {
		return err
	}
	first, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", init))
	if err != nil {
		return err
	}
	s["cgroups"] = "others than PID 1's"
	if string(own) == string(first) {
		s["cgroups"] = "PID 1's"
	}
	return nil
}

// small files whose whole text counts. Some need an option of the kernel.
func (s ProcStatus) small(dir string) error {
	for _, f := range []string{
		"attr/current", "oom_score_adj", "loginuid", "uid_map", "gid_map", "setgroups", "projid_map",
		"coredump_filter", "personality", "autogroup", "timerslack_ns",
	} {
		b, err := os.ReadFile(filepath.Join(dir, f))
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
			continue
		}
		if err != nil {
			return err
		}
		text := strings.Join(strings.Fields(string(b)), " ")
		if f == "autogroup" { // "/autogroup-123 nice 0"; each session has a number
			_, text, _ = strings.Cut(text, " ")
		}
		s[f] = text
	}
	st, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok {
		s["proc owner"] = fmt.Sprintf("%d:%d", sys.Uid, sys.Gid)
	}
	return nil
}

func (s ProcStatus) scheduling(pid int) error {
	attr, err := unix.SchedGetAttr(pid, 0)
	if err != nil {
		return err
	}
	s["scheduling"] = fmt.Sprintf("policy %d, nice %d, priority %d, flags %#x", attr.Policy, attr.Nice, attr.Priority, attr.Flags)
	io, _, e := unix.Syscall(unix.SYS_IOPRIO_GET, 1, uintptr(pid), 0) // IOPRIO_WHO_PROCESS
	if e != 0 {
		return e
	}
	s["i/o priority"] = strconv.Itoa(int(io))
	return nil
}

// Compare lists the fields in which a booted process a and a restored one b
// are confined differently, sorted, known differences included.
func Compare(a, b ProcStatus) []Difference {
	fields := slices.Collect(maps.Keys(a))
	for f := range b {
		if _, ok := a[f]; !ok {
			fields = append(fields, f)
		}
	}
	slices.Sort(fields)
	var ds []Difference
	for _, f := range fields {
		if a[f] != b[f] {
			ds = append(ds, Difference{Field: f, A: a[f], B: b[f], Known: knownDifferences[f]})
		}
	}
	return ds
}

// Unexpected leaves out the known differences.
func Unexpected(ds []Difference) []Difference {
	return slices.DeleteFunc(slices.Clone(ds), func(d Difference) bool { return d.Known != "" })
}
