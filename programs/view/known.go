package view

import (
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Occasion is when a view is compared with one from before the checkpoint.
type Occasion string

// Occasions. What differs in the live program may differ after a rollback, too, and in a copy and from disk.
const (
	Live     Occasion = "live"
	Rollback Occasion = "rollback"
	Copy     Occasion = "copy"
	Disk     Occasion = "disk"
)

var occasions = []Occasion{Live, Rollback, Copy, Disk}

// KnownField is a difference that is known: what the kernel shows otherwise of a process that was checkpointed or
// restored.
type KnownField struct {
	// Field names it in the document.
	Field string
	// Since says from which occasion on it may differ.
	Since Occasion
	Why   string
	// Sometimes it does not differ, and need not.
	Sometimes bool

	pattern *regexp.Regexp // of the name behind the process's number
	allows  func(was, is string) bool
	zombies bool // it is of those alone
}

// Known are all differences that are known. docs/limits.md has the same list.
var Known = []KnownField{
	known("stat: minflt, majflt, cminflt, cmajflt, utime, stime, cutime, cstime, processor, rss, delayacct_blkio_ticks", Live, "what is counted, and the processor that was used last",
		`thread \d+ stat (c?(min|maj)flt|c?[us]time|processor|rss|delayacct_blkio_ticks)`, nil),
	known("status: VmPeak, VmHWM, VmRSS, VmPTE, VmSwap, Rss…; smaps: what is counted in kB", Live, "pages that are in use; an area of 2 MB is mapped while a process stands",
		`thread \d+ status (Vm(Peak|HWM|RSS|PTE|Swap)|Rss.*)|map \S+ (Rss|Pss.*|Shared_\w+|Private_\w+|Referenced|Anonymous|\w*HugePages|\w*PmdMapped|Swap\w*|LazyFree|KSM|Locked)`, nil),
	known("status: …ctxt_switches", Live, "counted", `thread \d+ status \w*voluntary_ctxt_switches`, nil),
	known("smaps: VmFlags uw; ac and nr", Live, "uw is how writes are tracked; restored memory is accounted for otherwise (nr in place of ac)", `map \S+ VmFlags`, sameFlags),
	known("syscall", Live, "a thread that sleeps goes on by restart_syscall (219); a restored one calls anew", `thread \d+ syscall`, restarted).sometimes(),
	known("stat: starttime, flags", Rollback, "restored processes are new; one that was made by root shows that it used its rights (0x100)", `thread \d+ stat (starttime|flags)`, nil),
	known("status: SigQ", Live, "signals that wait for all processes of a user", `thread \d+ status SigQ`, nil).sometimes(),
	known("status: FDSize", Rollback, "the size of a table, not of what is in it", `thread \d+ status FDSize`, nil),
	known("fd, fdinfo: inode numbers of pipes, sockets and what has no name; mnt_id, eventfd-id", Rollback, "the kernel gives them", `fd \d+ (ino|mnt_id|number|eventfd-id)`, nil),
	known("fdinfo: devices of watched and locked files, inodes in epoll's list, file handles", Rollback, "the kernel gives them",
		`fd \d+ (tfd \d+|inotify wd.*|lock.*)`, without(`(ino|sdev|fhandle-bytes|f_handle):\S+|\b[0-9a-f]{2,}:[0-9a-f]+:\d+\b`)),
	known("fdinfo: flags O_LARGEFILE, O_TMPFILE, O_NOFOLLOW", Rollback, "files without a name are opened as others; what was opened without a path gets O_LARGEFILE; what is open is opened again as what it is, not by its name", `fd \d+ flags`, onlyBits(0o20700000)),
	known("fd, cwd, exe: names of deleted files", Rollback, "they have another name, marked deleted as before", `fd \d+|cwd|exe`, bothDeleted),
	known("maps: names of deleted files", Rollback, "as above, or of memory that has their content; or the other name that the file has", `map \S+ path`, deletedOrLinked),
	known("maps: files that were written in the sandbox", Rollback, "the file of the checkpoint, /CHECKPOINT/upper/PATH, or memory that has its content", `map \S+ path`, inCheckpoint),
	known("fdinfo: the process of a lease", Rollback, "it is not told: 0", `fd \d+ lock.*`, without(`^\d+: LEASE .*`)),
	known("maps: device and inode", Rollback, "those of the layer that has the file", `map \S+ file`, nil),
	known("mountinfo: numbers, upperdir, workdir, uuid", Rollback, "another file system with the same content", `mountinfo numbers of .*|mountinfo /`, without(`(upperdir|workdir)=[^, ]*|uuid=on,|^\d+ \d+ \d+:\d+$`)),
	known("ns: numbers", Rollback, "the kernel gives them", `ns \S+ number`, nil),
	known("timens_offsets", Rollback, "so that clocks go on where they stood", `timens_offsets`, nil),
	known("task/children: their order", Rollback, "they are made in the order in which their memory is at hand", `thread \d+ children`, sameWords).sometimes(),
	known("loginuid", Rollback, "the audit of the host is not told again of a login inside (pam_loginuid)", `loginuid`, nil).sometimes(),
	known("ksm_stat of a process that is not dumpable", Rollback, "the file belongs to nobody inside", `ksm_stat`, gone).sometimes(),
	known("of zombies: stat exit_code, wchan, signals, times; status Sig…, Seccomp…, Cpus_allowed…; timers", Rollback,
		"nothing of them is left but what wait(2) tells, and whose they are, which is the same",
		`timers|thread \d+ (stat (exit_code|wchan|blocked|sig\w+)|status (Sig\w+|Shd\w+|Cpus_\w+|Seccomp\w*))`, nil).ofZombies(),
}

func known(field string, since Occasion, why, pattern string, allows func(was, is string) bool) KnownField {
	return KnownField{Field: field, Since: since, Why: why, pattern: regexp.MustCompile(`^(` + pattern + `)$`), allows: allows}
}

func (k KnownField) sometimes() KnownField { k.Sometimes = true; return k }

func (k KnownField) ofZombies() KnownField { k.zombies = true; return k }

// Knows finds what is known of a difference from an earlier view on an occasion, or nil.
func Knows(before View, d Difference, now Occasion) *KnownField {
	pid, name, _ := strings.Cut(d.Name, " ")
	zombie := before[pid+" thread "+pid+" stat state"] == "Z"
	for i := range Known {
		k := &Known[i]
		if k.pattern.MatchString(name) && slices.Index(occasions, k.Since) <= slices.Index(occasions, now) &&
			(k.allows == nil || k.allows(d.Was, d.Is)) && (zombie || !k.zombies) {
			return k
		}
	}
	return nil
}

// lasting are the flags of a mapping but those that say how writes are tracked and how it is accounted for.
func lasting(flags string) []string {
	return slices.DeleteFunc(strings.Fields(flags), func(f string) bool { return f == "uw" || f == "ac" || f == "nr" })
}

func sameFlags(was, is string) bool { return slices.Equal(lasting(was), lasting(is)) }

func onlyBits(may int64) func(was, is string) bool {
	return func(was, is string) bool {
		a, err1 := strconv.ParseInt(was, 8, 64)
		b, err2 := strconv.ParseInt(is, 8, 64)
		return err1 == nil && err2 == nil && (a^b)&^may == 0
	}
}

func without(pattern string) func(was, is string) bool {
	p := regexp.MustCompile(pattern)
	return func(was, is string) bool { return p.ReplaceAllString(was, "") == p.ReplaceAllString(is, "") }
}

func restarted(was, is string) bool {
	number := func(s string) string { n, _, _ := strings.Cut(s, " "); return n }
	return number(was) == number(is) || number(was) == "219" || number(is) == "219"
}

func bothDeleted(was, is string) bool {
	return strings.HasSuffix(was, " (deleted)") && strings.HasSuffix(is, " (deleted)")
}

// deletedOrLinked is for a file that was made under a temporary name, too, which was linked to its final one and unlinked.
func deletedOrLinked(was, is string) bool {
	return strings.HasSuffix(was, " (deleted)") && (strings.HasSuffix(is, " (deleted)") || path.Dir(is) == path.Dir(was))
}

func inCheckpoint(was, is string) bool {
	if strings.HasPrefix(is, "/memfd:") {
		return true
	}
	at, path, ok := strings.Cut(is, "/upper/")
	return ok && "/"+path == was && strings.HasPrefix(at, "/cp-")
}

func sameWords(was, is string) bool {
	return slices.Equal(slices.Sorted(slices.Values(strings.Fields(was))), slices.Sorted(slices.Values(strings.Fields(is))))
}

func gone(_, is string) bool { return is == "" }
