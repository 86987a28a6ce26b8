package process

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/procmem"
	"github.com/sandtree/sandtree/internal/linux/uffd"
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/process/memory"
	"github.com/sandtree/sandtree/internal/tracee"
)

// Where things go in a target while batches run in it. The area is mapped for
// that time only, where a restored process has its stub.
const (
	insideLeader  = tracee.StubStart + 0x1000 // after the loop's code
	insideThreads = insideLeader + 0x20000
	insideFDs     = insideThreads + threadsAtOnce*threadSlot
	insideEnd     = insideFDs + 0xc0000

	insideOps = insideFDs + (insideEnd-insideFDs)/2 // the end of operations there

	threadSlot    = 0x4000
	threadsAtOnce = 64
	fdsAtOnce     = (insideEnd-insideFDs)/64/2 - 16
)

func areaOf(start, data, end uint64) tracee.Area {
	return tracee.Area{Ops: start, OpsEnd: data, Child: data, ChildEnd: data, Data: data, DataEnd: end}
}

// readInside has all threads of all processes say what only they can. EnteredAll is
// called when write tracking is on in all, and no more is mapped in them.
func (l *Live) readInside(enteredAll func()) error {
	var err error
	entered := 0
	for _, p := range l.order {
		if err = l.mapArea(p); err != nil {
			break
		}
		entered++
		if err = failArea.Hit(); err == nil {
			err = l.enter(p)
		}
		if err != nil {
			break
		}
	}
	if err == nil {
		err = failEntered.Hit()
	}
	if err == nil {
		enteredAll()
		err = l.askAll()
	}
	for _, p := range l.order[:entered] {
		if e := l.leave(p); err == nil {
			err = e
		}
	}
	return err
}

// mapArea maps the area in a process.
func (l *Live) mapArea(p *liveProcess) error {
	lead := p.threads[0].tracee
	if p.syscall == 0 || !p.memory.Attached() { // new, or another program by now
		at, err := memory.FindSyscall(p.via, p.memory.VMAs())
		if err != nil {
			return fault.New(fault.Uncapturable, "%s: %w", describe(p), err).
				WithHint("it unmapped what the kernel gives every program; restart it")
		}
		p.syscall = at
	}
	fixed := uint64(unix.MAP_FIXED_NOREPLACE)
	if p.behind = memory.Behind(p.memory.VMAs()); len(p.behind) > 0 { // it yields, or would have been refused
		fixed = unix.MAP_FIXED
	}
	place := func() error {
		_, err := lead.Syscall(p.syscall, unix.SYS_MMAP, tracee.StubStart, insideEnd-tracee.StubStart,
			unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE|fixed, ^uint64(0), 0)
		if errors.Is(err, unix.EACCES) { // memory that is both is denied to it (PR_SET_MDWE)
			err = l.mapApart(p, fixed)
		}
		return err
	}
	err := place()
	if noMemory(err) {
		err = l.cfg.withAllMemory(lead.TID, place)
	}
	if err != nil {
		return l.injectError(p, err)
	}
	return nil
}

// mapApart maps the area of a process that may have no memory to both write and
// execute: the loop's code apart from the rest.
func (l *Live) mapApart(p *liveProcess, fixed uint64) error {
	flags := unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_NORESERVE | fixed
	lead := p.threads[0].tracee
	_, err := lead.Syscall(p.syscall, unix.SYS_MMAP, tracee.StubStart, insideLeader-tracee.StubStart, unix.PROT_READ|unix.PROT_EXEC, flags, ^uint64(0), 0)
	if err != nil {
		return err
	}
	_, err = lead.Syscall(p.syscall, unix.SYS_MMAP, insideLeader, insideEnd-insideLeader, unix.PROT_READ|unix.PROT_WRITE, flags, ^uint64(0), 0)
	if err != nil {
		return errors.Join(err, l.leave(p))
	}
	return nil
}

// enter gives the threads of a process a loop in the area. The first time it
// also starts write tracking.
func (l *Live) enter(p *liveProcess) error {
	lead := p.threads[0].tracee
	err := procmem.Write(p.via, tracee.StubStart, tracee.LoopCode())
	if errors.Is(err, unix.EFAULT) { // it is mapped apart
		err = procmem.Force(p.via, tracee.StubStart, tracee.LoopCode())
	}
	if err != nil {
		return l.injectError(p, err)
	}
	for _, t := range p.threads {
		t.tracee.UseLoop(tracee.StubStart)
	}
	if p.memory.Attached() {
		return nil
	}
	fd, err := lead.Syscall(p.syscall, unix.SYS_USERFAULTFD, uffd.Flags)
	if errors.Is(err, unix.EMFILE) { // it has as many open as it may
		err = l.cfg.withMore(lead.TID, unix.RLIMIT_NOFILE, uint64(len(p.numbers))+1, func() (err error) {
			fd, err = lead.Syscall(p.syscall, unix.SYS_USERFAULTFD, uffd.Flags)
			return err
		})
	}
	if err != nil {
		return l.injectError(p, err)
	}
	own, err := unix.PidfdGetfd(p.table, int(fd), 0)
	if _, e := lead.Syscall(p.syscall, unix.SYS_CLOSE, uint64(fd)); err == nil {
		err = e
	}
	if err != nil {
		return l.injectError(p, err)
	}
	return p.memory.Attach(own)
}

func (l *Live) leave(p *liveProcess) error {
	if _, err := p.threads[0].tracee.Syscall(p.syscall, unix.SYS_MUNMAP, tracee.StubStart, insideEnd-tracee.StubStart); err != nil {
		return l.injectError(p, err)
	}
	if err := mapBehind(p.threads[0].tracee, p.syscall, p.behind); err != nil {
		return l.injectError(p, err)
	}
	return nil
}

// noMemory reports whether a process has as much memory as it may, or as many mappings, or
// as much that is locked (EAGAIN, where all that is mapped gets locked: mlockall(2)).
func noMemory(err error) bool { return errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EAGAIN) }

func (l *Live) injectError(p *liveProcess, err error) error {
	if noMemory(err) {
		return fault.New(fault.Uncapturable, "%s has as many mappings, or as much memory, as it may: %w", describe(p), err).
			WithHint("raise vm.max_map_count on this machine, or the limit of its memory")
	}
	if errors.Is(err, unix.EMFILE) {
		return fault.New(fault.Uncapturable, "%s has as many descriptors open as its hard limit allows: %w", describe(p), err).
			WithHint("have it close one")
	}
	return fault.New(fault.Uncapturable, "%s: run a system call in it: %w", describe(p), err)
}

// askAll runs the batches of all threads beside each other, then what there was no room
// for in them.
func (l *Live) askAll() error {
	for first := 0; ; first += threadsAtOnce {
		asked, err := l.askThreads(first)
		if err != nil {
			return err
		}
		if !asked {
			break
		}
	}
	for _, p := range l.order {
		copyLeader(p.image)
		if err := l.askDescriptors(p); err != nil {
			return err
		}
		if err := l.askTimers(p); err != nil {
			return err
		}
		if p.image.State == image.Stopped {
			if err := l.askStop(p); err != nil {
				return err
			}
		}
	}
	return nil
}

// askThreads runs the batches of the threads of each process from the first
// on. All that were begun are finished, whatever fails: a thread must stand
// before it can go on.
func (l *Live) askThreads(first int) (asked bool, err error) {
	begun := l.begun[:0]
	for _, p := range l.order {
		for i := first; i < min(len(p.threads), first+threadsAtOnce) && err == nil; i++ {
			t := p.threads[i]
			if t.questions == nil || t.slot != i-first || (i == 0) != (t.questions.actions != nil) {
				t.questions, t.slot = newQuestions(i, i-first), i-first
			}
			if i == 0 {
				t.questions.askDescriptors(p.numbers)
				if p == l.order[0] {
					t.questions.namespaces = l.queueNamespaces(t.questions.batch)
				}
			}
			if e := t.tracee.Begin(t.questions.batch); e != nil {
				err = l.injectError(p, e)
				break
			}
			begun = append(begun, t)
		}
	}
	for _, t := range begun {
		if e := t.tracee.Finish(t.questions.batch); e != nil {
			if err == nil {
				err = l.injectError(t.process, e)
			}
			continue
		}
		if e := t.questions.answer(t); e != nil && err == nil {
			err = fmt.Errorf("%s: %w", describe(t.process), e)
		}
	}
	l.begun = begun
	return len(begun) > 0, err
}

// askDescriptors asks of the descriptors that the questions had no room for whether they are
// closed by execve(2), and puts all answers into the image.
func (l *Live) askDescriptors(p *liveProcess) error {
	for at := withQuestions; at < len(p.numbers); at += int(fdsAtOnce) {
		part := p.numbers[at:min(len(p.numbers), at+int(fdsAtOnce))]
		b := tracee.NewBatchIn(areaOf(insideFDs, insideOps, insideEnd))
		refs := make([]tracee.Ref, len(part))
		for i, n := range part {
			refs[i] = b.Call(unix.SYS_FCNTL, n, unix.F_GETFD)
		}
		if err := p.threads[0].tracee.Run(b); err != nil {
			return l.injectError(p, err)
		}
		for i, r := range refs {
			p.closeOnExec[at+i] = b.Value(r)&unix.FD_CLOEXEC != 0
		}
	}
	for i := range p.image.Descriptors {
		d := &p.image.Descriptors[i]
		if k, ok := slices.BinarySearch(p.numbers, d.Number); ok {
			d.CloseOnExec = p.closeOnExec[k]
		}
	}
	return nil
}

func u32(b []byte, i int) int    { return int(int32(binary.LittleEndian.Uint32(b[4*i:]))) }
func u64(b []byte, i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
