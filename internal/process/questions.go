package process

import (
	"bytes"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

const (
	maxGroups     = 1000
	lastSignal    = 64
	prGetTIDAddr  = 40 // PR_GET_TID_ADDRESS
	prGetMDWE     = 66 // PR_GET_MDWE (Linux 6.3)
	ambientIsSet  = 1  // PR_CAP_AMBIENT_IS_SET
	capVersion3   = 0x20080522
	itimers       = 3
	itimerSize    = 32
	sigactionSize = 32
	// MEMBARRIER_CMD_GET_REGISTRATIONS of linux/membarrier.h.
	membarrierRegistrations = 1 << 9
)

// questions are what one thread is asked, made once and used at each stop.
type questions struct {
	batch                                                *tracee.Batch
	uids, gids, groups, caps                             *tracee.Output
	tidAddress, altStack, pdeathsig, name                *tracee.Output
	fsuid, fsgid, ngroups, noNewPrivs, secureBits, slack tracee.Ref
	bounding, ambient                                    [unix.CAP_LAST_CAP + 1]tracee.Ref
	actions, timers, subreaper                           *tracee.Output // of the process, asked of its leader
	umask, dumpable, personality, programBreak           tracee.Ref
	noHugePages, membarrier                              tracee.Ref
	writeExec                                            tracee.Ref
	modes                                                askedModes
	// What the leader is asked besides changes with the descriptors; see askDescriptors.
	fixed       tracee.Mark
	closeOnExec []tracee.Ref
	namespaces  func() error // takes the answer; nil: it is not asked
}

// newQuestions makes the questions for the i-th thread of a process, in a
// slot of the area.
func newQuestions(i, slot int) *questions {
	q := &questions{}
	if slot == 0 {
		q.batch = tracee.NewBatchIn(areaOf(insideLeader, insideLeader+0x10000, insideThreads))
	} else {
		at := insideThreads + uint64(slot)*threadSlot
		q.batch = tracee.NewBatchIn(areaOf(at, at+threadSlot/2, at+threadSlot))
	}
	b := q.batch
	q.uids, q.gids = b.Output(12), b.Output(12)
	b.Call(unix.SYS_GETRESUID, q.uids, q.uids.Ptr+4, q.uids.Ptr+8)
	b.Call(unix.SYS_GETRESGID, q.gids, q.gids.Ptr+4, q.gids.Ptr+8)
	// Ids that are none change nothing, and the old ones are returned (setfsuid(2)).
	q.fsuid, q.fsgid = b.Call(unix.SYS_SETFSUID, ^uint64(0)), b.Call(unix.SYS_SETFSGID, ^uint64(0))
	q.groups = b.Output(4 * maxGroups)
	q.ngroups = b.Try(unix.SYS_GETGROUPS, maxGroups, q.groups)
	q.caps = b.Output(24)
	b.Call(unix.SYS_CAPGET, b.PutWords(capVersion3), q.caps)
	q.noNewPrivs = b.Call(unix.SYS_PRCTL, unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	q.secureBits = b.Call(unix.SYS_PRCTL, unix.PR_GET_SECUREBITS, 0, 0, 0, 0)
	q.slack = b.Call(unix.SYS_PRCTL, unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	q.pdeathsig, q.tidAddress = b.Output(8), b.Output(8)
	b.Call(unix.SYS_PRCTL, unix.PR_GET_PDEATHSIG, q.pdeathsig, 0, 0, 0)
	b.Call(unix.SYS_PRCTL, prGetTIDAddr, q.tidAddress, 0, 0, 0)
	q.altStack, q.name = b.Output(24), b.Output(16)
	b.Call(unix.SYS_SIGALTSTACK, nil, q.altStack)
	b.Call(unix.SYS_PRCTL, unix.PR_GET_NAME, q.name, 0, 0, 0)
	q.modes.ask(b)
	for c := range q.bounding {
		q.bounding[c] = b.Call(unix.SYS_PRCTL, unix.PR_CAPBSET_READ, c, 0, 0, 0)
		q.ambient[c] = b.Call(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, ambientIsSet, c, 0, 0)
	}
	if i == 0 {
		q.askProcess()
	}
	q.fixed = b.Mark()
	return q
}

func (q *questions) askProcess() {
	b := q.batch
	q.actions = b.Output(lastSignal * sigactionSize)
	for s := 1; s <= lastSignal; s++ {
		if s != int(unix.SIGKILL) && s != int(unix.SIGSTOP) {
			b.Call(unix.SYS_RT_SIGACTION, s, nil, q.actions.Ptr+tracee.Ptr((s-1)*sigactionSize), 8)
		}
	}
	q.timers = b.Output(itimers * itimerSize)
	for w := range itimers {
		b.Call(unix.SYS_GETITIMER, w, q.timers.Ptr+tracee.Ptr(w*itimerSize))
	}
	q.umask = b.Call(unix.SYS_UMASK, 0) // the only way to read it sets it
	b.Call(unix.SYS_UMASK, q.umask)
	q.dumpable = b.Call(unix.SYS_PRCTL, unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	q.subreaper = b.Output(8)
	b.Call(unix.SYS_PRCTL, unix.PR_GET_CHILD_SUBREAPER, q.subreaper, 0, 0, 0)
	q.noHugePages = b.Try(unix.SYS_PRCTL, unix.PR_GET_THP_DISABLE, 0, 0, 0, 0)
	q.membarrier = b.Try(unix.SYS_MEMBARRIER, membarrierRegistrations, 0, 0)
	q.personality = b.Call(unix.SYS_PERSONALITY, 0xffffffff)
	q.writeExec = b.Try(unix.SYS_PRCTL, prGetMDWE, 0, 0, 0, 0)
	q.programBreak = b.Call(unix.SYS_BRK, 0)
}

// askDescriptors adds for this stop which descriptors are closed by execve(2), of the first
// withQuestions. /proc tells a wrong answer for those that came from TIOCGPTPEER.
func (q *questions) askDescriptors(numbers []int) {
	q.batch.Truncate(q.fixed)
	q.closeOnExec, q.namespaces = q.closeOnExec[:0], nil
	for _, n := range numbers[:min(len(numbers), withQuestions)] {
		q.closeOnExec = append(q.closeOnExec, q.batch.Call(unix.SYS_FCNTL, n, unix.F_GETFD))
	}
}

// withQuestions is how many descriptors there is room for behind what a leader is asked:
// more take a turn of their own.
const withQuestions = 512

// answer fills the thread's record, and its process's if it is the leader.
func (q *questions) answer(t *liveThread) error {
	m, b := t.image, q.batch
	c := &m.Creds
	for i := range 3 {
		c.UID[i], c.GID[i] = u32(q.uids.Bytes(), i), u32(q.gids.Bytes(), i)
	}
	c.UID[3], c.GID[3] = b.Value(q.fsuid), b.Value(q.fsgid)
	n, err := b.Result(q.ngroups)
	if errors.Is(err, unix.EINVAL) {
		return fault.New(fault.Uncapturable, "has more than %d supplementary groups", maxGroups)
	}
	if err != nil {
		return err
	}
	c.Groups = make([]int, n)
	for i := range c.Groups {
		c.Groups[i] = u32(q.groups.Bytes(), i)
	}
	half := func(i int) uint64 { return uint64(uint32(u32(q.caps.Bytes(), i))) }
	c.Effective, c.Permitted, c.Inheritable = half(0)|half(3)<<32, half(1)|half(4)<<32, half(2)|half(5)<<32
	for i := range q.bounding {
		c.Bounding |= uint64(b.Value(q.bounding[i])) & 1 << i
		c.Ambient |= uint64(b.Value(q.ambient[i])) & 1 << i
	}
	c.NoNewPrivs = b.Value(q.noNewPrivs) == 1
	c.SecureBits = uint32(b.Value(q.secureBits))
	m.Sched.TimerSlack = uint64(b.Value(q.slack))
	if t.boost.raised && t.boost.slack > 0 {
		m.Sched.TimerSlack = uint64(t.boost.slack)
	}
	m.PDeathSig = u32(q.pdeathsig.Bytes(), 0)
	m.ClearTID = u64(q.tidAddress.Bytes(), 0)
	copy(m.AltStack[:], q.altStack.Bytes())
	name, _, _ := bytes.Cut(q.name.Bytes(), []byte{0})
	m.Name = string(name)
	q.modes.answer(b, &m.Modes)
	if q.actions == nil {
		return nil
	}
	q.answerProcess(t.process)
	for i, r := range q.closeOnExec {
		t.process.closeOnExec[i] = b.Value(r)&unix.FD_CLOEXEC != 0
	}
	if q.namespaces != nil {
		return q.namespaces()
	}
	return nil
}

func (q *questions) answerProcess(p *liveProcess) {
	m, b := p.image, q.batch
	for s := range m.Handlers {
		a := q.actions.Bytes()[s*sigactionSize:]
		m.Handlers[s] = image.Handler{Action: u64(a, 0), Flags: u64(a, 1), Restorer: u64(a, 2), Mask: u64(a, 3)}
	}
	for w := range m.Timers {
		v := q.timers.Bytes()[w*itimerSize:]
		m.Timers[w].Interval = unix.Timeval{Sec: int64(u64(v, 0)), Usec: int64(u64(v, 1))}
		m.Timers[w].Value = unix.Timeval{Sec: int64(u64(v, 2)), Usec: int64(u64(v, 3))}
		if m.Timers[w].Value == (unix.Timeval{}) && m.Timers[w].Interval != (unix.Timeval{}) {
			// It has fired, and the kernel arms it again when the signal, which
			// is pending, is delivered. Firing once more adds no second signal.
			m.Timers[w].Value.Usec = 1
		}
	}
	m.Umask = uint32(b.Value(q.umask))
	m.Dumpable = b.Value(q.dumpable)
	m.Subreaper = u32(q.subreaper.Bytes(), 0) != 0
	m.WriteExec = max(b.Value(q.writeExec), 0)
	huge := b.Value(q.noHugePages)
	m.NoHugePages, m.ButAdvised = huge == 1 || huge == 1|thpButAdvised, huge == 1|thpButAdvised
	if v, err := b.Result(q.membarrier); err == nil { // Linux 6.3
		m.Membarrier = uint32(v)
	}
	m.Personality = uint32(b.Value(q.personality))
	p.stat.mm.Brk = uint64(b.Value(q.programBreak))
}
