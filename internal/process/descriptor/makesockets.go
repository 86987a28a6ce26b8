package descriptor

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/linux/thread"
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// Maker is a process of the restored tree. Sockets are made by the processes
// themselves, so that their credentials, cgroup and network namespace are
// right; what can be done from here then is done through duplicates.
type Maker struct {
	PID   int // inside
	Host  int // in the numbers of this process
	PIDFD int
	Table []image.Descriptor
	// Control is the number of its control socket, which stays.
	Control int
	// Run runs a batch in it. It has all rights in its user namespace, no
	// supplementary groups, and its root is the sandbox's.
	Run func(b *tracee.Batch) error
	// Limit lets it have that many descriptors at least.
	Limit func(count int) error
}

// MakeSockets makes all sockets, and gives pipes to their owners. The makers are all processes that will have
// descriptors; each needs no other than its control socket, and has at most
// a few more afterwards.
func (o *Opened) MakeSockets(makers []Maker) error {
	if !slices.ContainsFunc(o.files, func(f *image.File) bool { return f.Socket != nil }) || len(makers) == 0 {
		return nil
	}
	w := &workshop{Opened: o, have: map[int]*made{}, gone: map[int]int{}, lost: map[int]*made{}, passed: map[int]bool{}, closed: map[int]map[int]*made{}}
	defer w.close()
	for i := range makers {
		w.workers = append(w.workers, &worker{Maker: &makers[i], shop: w})
	}
	m, err := readIDs(makers[0].Host)
	if err != nil {
		return err
	}
	w.ids = m
	for _, step := range []func() error{w.makeUnix, w.makeTCP, w.makeUDP, w.makeNetlink, w.fillQueues, w.release, w.finishSockets} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// workshop is where sockets are made.
type workshop struct {
	*Opened
	workers []*worker
	holders map[int]*worker // the first that will have a file
	ids     *ids
	have    map[int]*made         // sockets in their makers, by file
	gone    map[int]int           // our descriptors of other ends that were closed, by file of the one that is left
	lost    map[int]*made         // those of pairs
	passed  map[int]bool          // files whose other ends have sent all and were closed
	closed  map[int]map[int]*made // clients that were closed and wait to be accepted, by file of who listens and their turn
	ports   map[uint16]bool       // that some TCP socket has
	temps   []int                 // our descriptors of others that are not needed in the end
}

// worker is a process that makes sockets.
type worker struct {
	*Maker
	shop    *workshop
	batch   *tracee.Batch
	pending []*made
	count   int // of descriptors it has
}

// made is a socket that a worker has.
type made struct {
	w      *worker
	arg    any // a tracee.Ref until its batch has run, then a number
	result func(b *tracee.Batch) int
	number int
	fd     int // ours, or -1
}

// holder is a worker that will have a file, or any.
func (w *workshop) holder(file int) *worker {
	if w.holders == nil {
		w.holders = map[int]*worker{}
		for _, k := range slices.Backward(w.workers) {
			for _, d := range k.Table {
				w.holders[d.File] = k
			}
		}
	}
	if k := w.holders[file]; k != nil {
		return k
	}
	return w.workers[0]
}

// creator is the worker that a peer's credentials name, or who has the file.
func (w *workshop) creator(p *image.Peer, file int) *worker {
	if p != nil && p.PID != 0 {
		for _, k := range w.workers {
			if k.PID == p.PID {
				return k
			}
		}
	}
	return w.holder(file)
}

// call queues a call.
func (k *worker) call(nr int, args ...any) tracee.Ref {
	for i, a := range args {
		if m, ok := a.(*made); ok {
			args[i] = m.arg
		}
	}
	return k.batch.Call(nr, args...)
}

// room begins a batch, or another one if there is little room left.
func (k *worker) room() error {
	if k.batch != nil && !k.batch.Full(48, 4096) {
		return nil
	}
	if err := k.flush(); err != nil {
		return err
	}
	k.batch = tracee.NewBatch()
	return nil
}

// flush runs what is queued.
func (k *worker) flush() error {
	b := k.batch
	if b == nil || b.Len() == 0 {
		return nil
	}
	k.batch = nil
	if err := k.Limit(k.count + len(k.pending) + 256); err != nil {
		return err
	}
	if err := k.Run(b); err != nil {
		return fmt.Errorf("make sockets in process %d: %w", k.PID, err)
	}
	for _, m := range k.pending {
		m.number = m.result(b)
		m.arg = m.number
	}
	k.count += len(k.pending)
	k.pending = nil
	return nil
}

// socket queues the making of a socket.
func (k *worker) socket(s *image.Socket) (*made, error) {
	if err := k.room(); err != nil {
		return nil, err
	}
	ref := k.call(unix.SYS_SOCKET, s.Domain, s.Type|unix.SOCK_CLOEXEC, s.Protocol)
	m := &made{w: k, arg: ref, fd: -1, result: func(b *tracee.Batch) int { return b.Value(ref) }}
	k.pending = append(k.pending, m)
	return m, nil
}

// pair queues the making of two that are connected.
func (k *worker) pair(s *image.Socket, as *image.Peer) (one, other *made, err error) {
	if err := k.room(); err != nil {
		return nil, nil, err
	}
	out := k.batch.Output(16) // a result is copied with eight bytes
	k.as(as, func() { k.call(unix.SYS_SOCKETPAIR, s.Domain, s.Type|unix.SOCK_CLOEXEC, s.Protocol, out) })
	end := func(i int) *made {
		m := &made{w: k, arg: nil, fd: -1, result: func(*tracee.Batch) int { return int(int32(word(out.Bytes()[4*i:]))) }}
		// The number is known to calls of the same batch by where it stands.
		m.arg = tracee.Ref(uint64(out.Ptr) + uint64(4*i))
		k.pending = append(k.pending, m)
		return m
	}
	return end(0), end(1), nil
}

// as queues calls in the name of somebody.
func (k *worker) as(p *image.Peer, f func()) {
	if p == nil || p.UID == 0 && p.GID == 0 && len(p.Groups) == 0 {
		f()
		return
	}
	const keep = 0xffffffff
	k.call(unix.SYS_PRCTL, unix.PR_SET_SECUREBITS, thread.NoSetuidFixup, 0, 0, 0)
	var groups []byte
	for _, g := range p.Groups {
		groups = append(groups, int32Bytes(g)...)
	}
	k.call(unix.SYS_SETGROUPS, len(p.Groups), groups)
	k.call(unix.SYS_SETRESGID, keep, p.GID, keep)
	k.call(unix.SYS_SETRESUID, keep, p.UID, keep)
	f()
	k.call(unix.SYS_SETRESUID, keep, 0, keep)
	k.call(unix.SYS_SETRESGID, keep, 0, keep)
	k.call(unix.SYS_SETGROUPS, 0, nil)
	k.call(unix.SYS_PRCTL, unix.PR_SET_SECUREBITS, 0, 0, 0, 0)
}

// fetch duplicates a socket that a worker has.
func (m *made) fetch() (int, error) {
	if m.fd >= 0 {
		return m.fd, nil
	}
	if err := m.w.flush(); err != nil {
		return -1, err
	}
	fd, err := unix.PidfdGetfd(m.w.PIDFD, m.number, 0)
	if err != nil {
		return -1, fmt.Errorf("fetch a socket from process %d: %w", m.w.PID, exhausted(err))
	}
	m.fd = fd
	return fd, nil
}

// give fetches the socket of a file, for good.
func (w *workshop) give(file int) error {
	m := w.have[file]
	if m == nil || w.fd[file] >= 0 {
		return nil
	}
	fd, err := m.fetch()
	if err != nil {
		return err
	}
	w.fd[file] = fd
	return nil
}

// release has the workers close all that they have.
func (w *workshop) release() error {
	for _, k := range w.workers {
		if k.count == 0 && k.batch == nil {
			continue
		}
		if err := k.room(); err != nil {
			return err
		}
		if k.Control > 0 {
			k.call(unix.SYS_CLOSE_RANGE, 0, k.Control-1, 0)
		}
		k.call(unix.SYS_CLOSE_RANGE, k.Control+1, uint32(1<<32-1), 0)
		if err := k.flush(); err != nil {
			return err
		}
	}
	return nil
}

// close closes what is not needed any more.
func (w *workshop) close() {
	closeAll(w.temps)
	for _, fd := range w.gone {
		_ = unix.Close(fd)
	}
}
