package process

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// refuse looks for what no checkpoint can keep. Nothing was touched yet.
func (l *Live) refuse(zombies []*image.Process) error {
	for _, p := range l.order {
		if err := l.refuseProcess(p); err != nil {
			return err
		}
	}
	if err := l.refuseSharing(); err != nil {
		return err
	}
	return l.refuseShape(zombies)
}

func (l *Live) refuseProcess(p *liveProcess) error {
	no := func(format string, a ...any) *fault.Error {
		return fault.New(fault.Uncapturable, describe(p)+" "+format, a...)
	}
	if l.nameless(p, "root", p.image.Root) {
		return no("has a root directory (chroot) that was removed: %s", p.image.Root).WithHint("end it, then try again")
	}
	for what, name := range map[string]string{"a root directory (chroot)": p.image.Root, "its working directory": p.image.Cwd} {
		if lateDirectory(p.pid, name) {
			return no("has %s that belongs to another process or to a thread: %s", what, name).WithHint("have it change to another one, then try again")
		}
	}
	for _, t := range p.threads {
		if !native(&t.regs) {
			return no("runs code of another word size").WithHint("run a 64-bit build of it")
		}
		if what := p.ownOf(t); what != "" {
			return no("has a thread (%d) with a %s of its own (clone without CLONE_FILES or CLONE_FS)", t.tid, what).
				WithHint("a checkpoint keeps one for all threads of a process")
		}
		switch pol := t.image.Sched.Policy; pol {
		case unix.SCHED_NORMAL, unix.SCHED_BATCH, unix.SCHED_IDLE, unix.SCHED_FIFO, unix.SCHED_RR:
		default:
			return no("has a thread (%d) with scheduling of policy %d (deadlines, or a scheduler of the machine's own)", t.tid, pol).
				WithHint("run it with another policy")
		}
	}
	for i := range p.memory.VMAs() {
		v := &p.memory.VMAs()[i]
		if v.Start < tracee.StubEnd && v.End > tracee.StubStart && !p.yields(v) {
			return no("maps memory at %#x, which sandtree needs", v.Start)
		}
		if reason := refuseMapping(v); reason != "" {
			return no("maps %s at %#x", reason, v.Start)
		}
	}
	return l.listTimers(p)
}

// lateDirectory reports whether a path is of a process in /proc that is not there yet, or does
// not let others look, when a restored process goes to its directories: any but that of PID 1 and
// its own, without its threads.
func lateDirectory(pid int, name string) bool {
	rest, ok := strings.CutPrefix(name, "/proc/")
	first, below, _ := strings.Cut(strings.TrimSuffix(rest, deletedSuffix), "/")
	of, err := strconv.Atoi(first)
	if !ok || err != nil || of == 1 && below == "" {
		return false
	}
	return of != pid || strings.HasPrefix(below, "task/")
}

// refuseMapping names a mapping that cannot be captured.
func refuseMapping(v *image.VMA) string {
	switch {
	case v.Kind == image.VDSO && v.Name != "[vdso]" && v.Name != "[vvar]" && v.Name != "[vvar_vclock]":
		return "the kernel's " + v.Name
	case v.Advice&image.Keyed != 0:
		return "memory with a protection key (pkey_mprotect)"
	case v.Path == "anon_inode:[io_uring]" || v.Path == "/[aio]":
		return "an asynchronous I/O ring"
	case v.Advice&image.Reserved != 0:
		return "huge pages that were reserved by hand"
	case len(v.Path) > 5 && v.Path[:5] == "/dev/" && v.Path != "/dev/zero" && (len(v.Path) < 9 || v.Path[:9] != "/dev/shm/"):
		return "the device " + v.Path
	case v.Kind == image.FileBacked && !v.Deleted && len(v.Path) >= unix.PathMax:
		return fmt.Sprintf("a file whose path is longer than the %d bytes that one can be opened by", unix.PathMax-1)
	}
	return ""
}

// refuseShape refuses trees whose sessions restore could not make again.
func (l *Live) refuseShape(zombies []*image.Process) error {
	byPID := map[int]*image.Process{}
	processes := slices.Clone(zombies)
	for _, p := range l.order {
		processes = append(processes, p.image)
	}
	for _, m := range processes {
		byPID[m.PID] = m
	}
	for _, p := range l.order {
		m := p.image
		if m.Session == m.PID {
			continue
		}
		if m.Parent > 1 && (byPID[m.Parent] == nil || byPID[m.Parent].State == image.Zombie) {
			return fault.New(fault.Uncapturable, "%s has a parent, process %d, that is ending", describe(p), m.Parent).
				WithHint("try again").Passing()
		}
		if wayOf(m, byPID) == byNobody {
			return fault.New(fault.Uncapturable, "%s is in another session (%d) than its parent, process %d, and neither began in it nor was adopted from it",
				describe(p), m.Session, m.Parent).WithHint("end it, then try again")
		}
	}
	if _, m := leaderless(processes, byPID); m != nil {
		return fault.New(fault.Uncapturable, "process %d (%s) and others are in one session (%d) without a leader, and have different parents", m.PID, m.Comm, m.Session).
			WithHint("end it, then try again")
	}
	return nil
}
