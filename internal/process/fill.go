package process

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/ptrace"
	"github.com/sandtree/sandtree/internal/process/descriptor"
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/process/memory"
	"github.com/sandtree/sandtree/internal/tracee"
)

// fill gives a process its memory: it leaves what is other processes', moves
// its own into place, maps what is shared, and tells the kernel where the
// program's parts are.
func (r *restore) fill(n *newProcess) error {
	z := r.spawned.target.Zygote(n.line.Key)
	b := tracee.NewBatch()
	var send []int
	room := func() (*tracee.Batch, error) {
		if !b.Full(16, 8192) && len(send) < descriptor.MostMessages {
			return b, nil
		}
		err := r.runEach(n, b, send)
		b, send = tracee.NewBatch(), nil
		return b, err
	}
	if err := z.Place(room, n.image, n.held); err != nil {
		return err
	}
	for i := range n.image.Memory.VMAs {
		v := &n.image.Memory.VMAs[i]
		if !v.Shared || v.Kind == image.VDSO {
			continue
		}
		if _, err := room(); err != nil {
			return err
		}
		if isSegment(v) {
			attach(b, n.image.Memory.VMAs, v)
			memory.Settle(b, v)
			continue
		}
		fd, err := r.mapShared(b, n, v)
		if err != nil {
			return err
		}
		if fd >= 0 {
			send = append(send, fd)
		}
		memory.Settle(b, v)
	}
	if _, err := room(); err != nil {
		return err
	}
	if f := n.image.ExeFile; f > 0 {
		send = append(send, r.files.FD(f-1))
	}
	queueMM(b, n.image, n.control)
	return r.runEach(n, b, send)
}

// runEach runs a batch that receives the descriptors one by one.
func (r *restore) runEach(n *newProcess, b *tracee.Batch, fds []int) error {
	for _, fd := range fds {
		if err := n.send(fd); err != nil {
			return err
		}
	}
	return n.tracee.Run(b)
}

// send sends a process descriptors, in one message, for the batch that it runs next. It does not
// wait: who would receive what was sent before stands still until that batch runs.
func (n *newProcess) send(fds ...int) error {
	if err := unix.Sendmsg(n.socket, []byte{0}, unix.UnixRights(fds...), nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT); err != nil {
		return fmt.Errorf("send descriptors to process %d: %w", n.image.PID, err)
	}
	return nil
}

// mapShared queues a shared mapping. It returns the descriptor that must be
// sent for it, or -1: named files are opened by the process itself.
func (r *restore) mapShared(b *tracee.Batch, n *newProcess, v *image.VMA) (int, error) {
	const flags = unix.MAP_SHARED | unix.MAP_FIXED
	if v.Kind == image.SharedAnonymous {
		own, ok := r.shared[sharedKey{v.Dev, v.Ino}]
		if !ok {
			return -1, fmt.Errorf("the image lacks the shared memory at %#x", v.Start)
		}
		fd := b.ReceiveFD(n.control)
		b.Call(unix.SYS_MMAP, v.Start, v.Len(), v.Prot, flags, fd, v.Offset)
		b.Call(unix.SYS_CLOSE, fd)
		return own, nil
	}
	mode := unix.O_RDONLY
	if v.Prot&unix.PROT_WRITE != 0 || v.Advice&image.MayWrite != 0 {
		mode = unix.O_RDWR
	}
	fd := b.Call(unix.SYS_OPEN, v.Path, mode|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	b.Call(unix.SYS_MMAP, v.Start, v.Len(), v.Prot, flags, fd, v.Offset)
	b.Call(unix.SYS_CLOSE, fd)
	return -1, nil
}

const (
	mmMapSize = 104 // of struct prctl_mm_map
	mmMapExe  = 100 // offset of exe_fd
)

// queueMM queues struct prctl_mm_map: addresses, auxiliary vector, executable. One
// without a name comes by the control socket.
func queueMM(b *tracee.Batch, p *image.Process, control int) {
	m := &p.Memory.MM
	var exe tracee.Ref
	if p.ExeFile > 0 {
		exe = b.ReceiveFD(control)
	} else {
		exe = b.Call(unix.SYS_OPEN, p.Exe, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	w := []uint64{
		m.StartCode, m.EndCode, m.StartData, m.EndData, m.StartBrk, m.Brk,
		m.StartStack, m.ArgStart, m.ArgEnd, m.EnvStart, m.EnvEnd,
		uint64(b.Put(p.Memory.Auxv)), uint64(len(p.Memory.Auxv)),
	}
	at := b.PutWords(w...)
	b.Store(at+mmMapExe, exe, 4)
	b.Call(unix.SYS_PRCTL, unix.PR_SET_MM, unix.PR_SET_MM_MAP, at, mmMapSize, 0)
	b.Call(unix.SYS_CLOSE, exe)
}

// makeShared makes the shared objects anew, with their content: each
// incarnation has its own. They are anonymous shared memory of this process's,
// which the kernel shows like that of any other.
func (r *restore) makeShared() error {
	for _, s := range r.tree.Shared {
		open := newShared
		if s.Object != 0 {
			open = r.openObject
		}
		fd, err := open(s)
		if err != nil {
			return fmt.Errorf("make shared memory of %d bytes: %w", s.Size, err)
		}
		r.shared[sharedKey{s.Dev, s.Ino}] = fd
	}
	return nil
}

// openObject opens the file of some descriptors once more, to map it.
func (r *restore) openObject(s *image.Shared) (int, error) {
	for i, f := range r.tree.Files {
		if f.Object == s.Object && r.files.FD(i) >= 0 {
			mode := unix.O_RDWR
			if f.Seals&unix.F_SEAL_WRITE != 0 { // a mapping that may become writable keeps it from being sealed
				mode = unix.O_RDONLY
			}
			return unix.Open(fmt.Sprintf("/proc/self/fd/%d", r.files.FD(i)), mode|unix.O_CLOEXEC, 0)
		}
	}
	return -1, fault.New(fault.Internal, "the image has no file %d", s.Object)
}

func newShared(s *image.Shared) (int, error) {
	size := (s.Size + 4095) &^ 4095
	m, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Munmap(m) }()
	at := addressOf(m)
	fd, err := unix.Open(fmt.Sprintf("/proc/self/map_files/%x-%x", at, at+uint64(size)), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := CopyData(fd, s.FD, s.Size); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// track begins to track the writes of a process whose memory is in place, by its
// userfaultfd, while the rest of it is made.
func (r *restore) track(n *newProcess, uffd int) error {
	var err error
	if n.tracker, err = memory.NewTracker(n.tracee.TID, n.image.PID, r.live.cfg.Scratch); err != nil {
		_ = unix.Close(uffd)
		return err
	}
	if err := n.tracker.Attach(uffd); err != nil {
		return err
	}
	protect := func() error { return n.tracker.Protect(n.image.Memory.VMAs) }
	if r.target.Urgent { // it holds the lock that the process's own calls need
		n.protected = r.target.Live.Beside(protect)
		return nil
	}
	done := make(chan error, 1)
	go func() { done <- protect() }()
	n.protected = func() error { return <-done }
	return nil
}

// tracked waits until nothing works on the process's tracker any more.
func (n *newProcess) tracked() error {
	if n.protected == nil {
		return nil
	}
	err := n.protected()
	n.protected = nil
	return err
}

// follow makes the restored process one that the Live follows, with its writes
// tracked from now on.
func (r *restore) follow(n *newProcess) error {
	l := r.live
	p := &liveProcess{host: n.tracee.TID, via: n.tracee.TID, pid: n.image.PID, round: l.round, syscall: n.syscall}
	var err error
	if p.pidfd, err = unix.PidfdOpen(p.host, 0); err != nil {
		return fmt.Errorf("pidfd: %w", err)
	}
	p.table = p.pidfd
	err = n.tracked()
	p.memory, n.tracker = n.tracker, nil
	if err != nil {
		p.close()
		return err
	}
	p.lineage = n.line.Key
	p.stat.comm, p.stat.mm, p.apart = n.image.Comm, n.image.Memory.MM, true
	l.procs[p.host] = p
	for i, t := range n.threads {
		m := n.image.Threads[i]
		th := &liveThread{
			host: t.TID, tid: m.TID, process: p, round: l.round, tracee: t,
			regs: restoredRegisters(m), mask: m.Sigmask, affinity: m.Sched.Affinity, xstate: make([]byte, xstateMax),
		}
		d := m.Modes.Dispatch
		th.dispatch = ptrace.SyscallDispatch{Mode: d[0], Selector: d[1], Offset: d[2], Length: d[3]}
		if m.Ended {
			th.regs = endingRegisters(m, n.syscall)
		}
		p.threads = append(p.threads, th)
		l.threads[t.TID] = th
	}
	p.memory.UseOrigins(l.origins)
	return p.memory.Begin(n.image.Memory.VMAs)
}

// restoredRegisters are those that a thread goes on with. Calls that the kernel
// would go on with by itself are entered anew: the new thread has not what the
// kernel remembers of them.
func restoredRegisters(m *image.Thread) tracee.Registers {
	r := tracee.Registers{PtraceRegs: m.Regs}
	if _, in := r.InSyscall(); !in {
		return r
	}
	if r.Result() == -int64(unix.EINTR) || r.Result() == restartBlock {
		r.Restart()
	}
	return r
}

func int32Bytes(v int) []byte { return binary.LittleEndian.AppendUint32(nil, uint32(v)) }
