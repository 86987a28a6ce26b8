package view

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Whole looks at all processes of /proc but this one and PID 1, as [Take] does, at everything that
// the kernel shows of them: for programs that stand still.
func Whole() (View, error) {
	pids, err := others()
	if err != nil {
		return nil, err
	}
	v := View{}
	objects := map[string]string{} // by link, named after who has it first
	for _, pid := range pids {
		put := func(name, value string) { v[fmt.Sprintf("%d %s", pid, name)] = value }
		dir := fmt.Sprintf("/proc/%d/", pid)
		for _, link := range []string{"cwd", "root", "exe"} {
			putLink(dir+link, link, put)
		}
		namespaces, _ := filepath.Glob(dir + "ns/*")
		for _, ns := range namespaces {
			name := "ns " + filepath.Base(ns)
			putLink(ns, name, func(name, to string) {
				put(name+" number", to)
				put(name, object(objects, "the namespace", to, pid, name))
			})
		}
		for _, file := range []string{
			"arch_status", "auxv", "cgroup", "cmdline", "coredump_filter", "cpuset", "environ", "gid_map", "loginuid", "oom_adj", "oom_score_adj",
			"personality", "projid_map", "sessionid", "setgroups", "timens_offsets", "timers", "timerslack_ns", "uid_map", "attr/current", "patch_state", "ksm_stat",
		} {
			putFile(dir+file, file, put)
		}
		putLines(dir+"limits", "limits", "  ", put)
		mounts(dir+"mountinfo", put)
		smaps(dir, put)
		wholeDescriptors(dir, pid, objects, put)
		tasks, _ := filepath.Glob(dir + "task/[0-9]*")
		for _, task := range tasks {
			thread := "thread " + filepath.Base(task) + " "
			for _, file := range []string{"children", "comm", "syscall", "personality", "cgroup"} {
				putFile(task+"/"+file, thread+file, put)
			}
			putLines(task+"/status", thread+"status", ":", put)
			stat(task, thread+"stat ", put)
		}
	}
	return v, nil
}

func putFile(path, name string, put func(name, value string)) {
	if text, err := os.ReadFile(path); err == nil {
		put(name, strings.TrimSpace(string(text)))
	}
}

func putLink(path, name string, put func(name, value string)) {
	if to, err := os.Readlink(path); err == nil {
		put(name, to)
	}
}

// putLines puts each line under its name and what stands there before the separator, and numbers those that
// have the same.
func putLines(path, name, separator string, put func(name, value string)) {
	text, err := os.ReadFile(path)
	if err != nil {
		return
	}
	seen := map[string]int{}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimRight(line, "\n"), separator)
		if key = strings.TrimSpace(key); key == "" {
			continue
		}
		if key == "tfd" { // in an order of the kernel's
			key += " " + strings.Fields(value)[0]
		}
		if seen[key]++; seen[key] > 1 {
			key = fmt.Sprintf("%s %d", key, seen[key])
		}
		put(name+" "+key, strings.Join(strings.Fields(value), " "))
	}
}

// object names what a link leads to after who has it first.
func object(objects map[string]string, kind, to string, pid int, as string) string {
	if objects[to] == "" {
		objects[to] = fmt.Sprintf("%s, first of process %d as %s", kind, pid, as)
	}
	return objects[to]
}

// statFields are the fields of stat from the third on (proc_pid_stat(5)).
var statFields = strings.Fields(`state ppid pgrp session tty_nr tpgid flags minflt cminflt majflt cmajflt utime stime cutime cstime priority nice
num_threads itrealvalue starttime vsize rss rsslim startcode endcode startstack kstkesp kstkeip signal blocked sigignore sigcatch wchan nswap cnswap
exit_signal processor rt_priority policy delayacct_blkio_ticks guest_time cguest_time start_data end_data start_brk arg_start arg_end env_start env_end exit_code`)

func stat(dir, name string, put func(name, value string)) {
	text, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return
	}
	for i, value := range strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:])) {
		field := fmt.Sprint("field ", i+3)
		if i < len(statFields) {
			field = statFields[i]
		}
		put(name+field, value)
	}
}

// mounts puts each mount by its place, with its numbers apart.
func mounts(path string, put func(name, value string)) {
	text, err := os.ReadFile(path)
	if err != nil {
		return
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 6 {
			continue
		}
		put("mountinfo numbers of "+f[4], strings.Join(f[:3], " "))
		put("mountinfo "+f[4], strings.Join(f[3:], " "))
	}
}

// header is the first line of a mapping in smaps.
var header = regexp.MustCompile(`^([0-9a-f]+)-([0-9a-f]+) (\S+) (\S+) (\S+ \d+) *(.*)`)

// mapping is what smaps says of one.
type mapping struct {
	start, end, perms, offset, file, path string
	said                                  map[string]string
}

// newMapping is the mapping of a header's parts.
func newMapping(f []string) *mapping {
	return &mapping{f[1], f[2], f[3], f[4], f[5], f[6], map[string]string{}}
}

// joins reports whether the next mapping could be one with this: the kernel has such as one or as two, for reasons that
// it does not show.
func (m *mapping) joins(next *mapping) bool {
	flags := func(m *mapping) string { return strings.Join(lasting(m.said["VmFlags"]), " ") }
	return m.end == next.start && m.perms == next.perms && m.file == "00:00 0" && next.file == m.file && m.path == next.path && flags(m) == flags(next)
}

// smaps puts each mapping and what smaps says of it, but for its size.
func smaps(dir string, put func(name, value string)) {
	text, err := os.ReadFile(dir + "smaps")
	if err != nil {
		return
	}
	var all []*mapping
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		if f := header.FindStringSubmatch(line); f != nil {
			all = append(all, newMapping(f))
		} else if key, value, ok := strings.Cut(line, ":"); ok && len(all) > 0 && key != "Size" {
			all[len(all)-1].said[key] = strings.TrimSpace(value)
		}
	}
	joined(all, func(m *mapping) {
		name := "map " + m.start + "-" + m.end
		put(name, m.perms+" "+m.offset)
		put(name+" path", m.path)
		put(name+" file", m.file)
		for key, value := range m.said {
			put(name+" "+key, value)
		}
	})
}

// joined calls f with each mapping, those that could be one as one.
func joined(all []*mapping, f func(m *mapping)) {
	for i, m := range all {
		if i+1 < len(all) && m.joins(all[i+1]) {
			all[i+1].start, all[i+1].offset = m.start, m.offset
			continue
		}
		f(m)
	}
}

func wholeDescriptors(dir string, pid int, objects map[string]string, put func(name, value string)) {
	for _, fd := range descriptors(dir) {
		n := "fd " + filepath.Base(fd)
		putLink(fd, n, func(name, to string) {
			if kind := numbered.FindStringSubmatch(to); kind != nil {
				put(name+" number", to)
				to = object(objects, kind[1], to, pid, name)
			}
			put(name, to)
		})
		putLines(dir+"fdinfo/"+filepath.Base(fd), n, ":", put)
	}
}
