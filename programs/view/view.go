// Package view tells what the kernel says of all processes that a process sees:
// it is run inside a sandbox, before and after a restore, and the two are
// compared.
package view

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// View is what was found, by names such as "7 status SigCgt" and
// "7 fd 3 flags": a process's number, the file of proc(5), the part of it.
type View map[string]string

// Take looks at all processes of /proc but this one and PID 1, which is not the
// sandbox's program. What ends meanwhile is left out.
func Take() (View, error) {
	pids, err := others()
	if err != nil {
		return nil, err
	}
	v := View{}
	pipes := map[string]string{} // by inode, named after who has it first
	for _, pid := range pids {
		v.process(pid, pipes)
	}
	if name, err := os.Hostname(); err == nil {
		v["host name"] = name
	}
	return v, nil
}

// others are the processes but this one and PID 1.
func others() ([]int, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, d := range dirs {
		pid, err := strconv.Atoi(filepath.Base(d))
		if err == nil && pid != 1 && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids, nil
}

func (v View) process(pid int, objects map[string]string) {
	dir := fmt.Sprintf("/proc/%d/", pid)
	cmdline, err := os.ReadFile(dir + "cmdline")
	if err != nil {
		return
	}
	put := func(name, value string) { v[fmt.Sprintf("%d %s", pid, name)] = value }
	put("command", strings.TrimSpace(strings.ReplaceAll(string(cmdline), "\x00", " ")))
	for _, link := range []string{"cwd", "root", "exe"} {
		if to, err := os.Readlink(dir + link); err == nil {
			put(link, to)
		}
	}
	for _, file := range []string{"limits", "oom_score_adj", "coredump_filter", "timers", "personality", "loginuid"} {
		if text, err := os.ReadFile(dir + file); err == nil {
			put(file, strings.TrimSpace(string(text)))
		}
	}
	v.stat(dir, put)
	v.maps(dir, put)
	v.descriptors(dir, pid, objects, put)
	tasks, _ := filepath.Glob(dir + "task/[0-9]*")
	for _, t := range tasks {
		lines(t+"/status", func(name, value string) {
			if !moving.MatchString(name) {
				put("thread "+filepath.Base(t)+" status "+name, value)
			}
		})
	}
}

// moving are the lines of status that a running program changes all the time.
var moving = regexp.MustCompile(`^(State|Vm.*|Rss.*|.*ctxt_switches|FDSize|HugetlbPages|SigQ|Mems_allowed|untag_mask)$`)

// stat puts the fields of stat that are set and not counted, see
// proc_pid_stat(5).
func (v View) stat(dir string, put func(name, value string)) {
	text, err := os.ReadFile(dir + "stat")
	if err != nil {
		return
	}
	// The first of these is the third of the manual's.
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	for i, name := range map[int]string{2: "group", 3: "session", 4: "terminal", 5: "foreground group", 15: "priority", 16: "nice", 35: "exit signal", 37: "real-time priority", 38: "policy"} {
		if i < len(fields) {
			put("stat "+name, fields[i])
		}
	}
}

// maps puts each mapping without its device and inode, which differ.
func (v View) maps(dir string, put func(name, value string)) {
	text, err := os.ReadFile(dir + "maps")
	if err != nil {
		return
	}
	var all []*mapping
	for line := range strings.Lines(string(text)) {
		f := header.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if f == nil || f[1] >= "7fff" && (f[6] == "[vvar]" || f[6] == "[vdso]" || f[6] == "[vvar_vclock]") {
			continue
		}
		all = append(all, newMapping(f))
	}
	joined(all, func(m *mapping) {
		name := "map " + m.start + "-" + m.end
		put(name, m.perms+" "+m.offset)
		put(name+" path", m.path)
	})
}

// numbered is a link to an object that has no name but its inode.
var numbered = regexp.MustCompile(`^(pipe|socket):\[\d+\]$`)

// descriptors are the paths of a process's in /proc, by their numbers.
func descriptors(dir string) []string {
	fds, _ := filepath.Glob(dir + "fd/[0-9]*")
	slices.SortFunc(fds, func(a, b string) int { return len(a)*1000 - len(b)*1000 + strings.Compare(a, b) })
	return fds
}

func (v View) descriptors(dir string, pid int, objects map[string]string, put func(name, value string)) {
	for _, fd := range descriptors(dir) {
		to, err := os.Readlink(fd)
		if err != nil {
			continue
		}
		n := filepath.Base(fd)
		if kind := numbered.FindStringSubmatch(to); kind != nil {
			if objects[to] == "" {
				objects[to] = fmt.Sprintf("%s, first of process %d as %s", kind[1], pid, n)
			}
			to = objects[to]
		}
		put("fd "+n, to)
		lines(dir+"fdinfo/"+n, func(name, value string) {
			switch name {
			case "mnt_id", "ino", "scm_fds", "tfd", "inotify wd", "lock":
			default:
				put("fd "+n+" "+name, value)
			}
		})
	}
}

// lines calls f with each line of the form "name: value" of a file.
func lines(file string, f func(name, value string)) {
	text, err := os.ReadFile(file)
	if err != nil {
		return
	}
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok {
			f(name, strings.Join(strings.Fields(value), " "))
		}
	}
}
