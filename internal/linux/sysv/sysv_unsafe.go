package sysv

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Commands of shmctl(2), semctl(2) and msgctl(2).
const (
	ipcRemove = 0
	ipcSet    = 1
	msgStat   = 11
	msgInfo   = 12
	shmLock   = 11
	shmStat   = 13
	shmInfo   = 14
	getAll    = 13
	setAll    = 17
	semStat   = 18
	semInfo   = 19

	shmReadOnly = 0o10000
	msgCopy     = 0o40000 // with IPC_NOWAIT: the nth message, which stays
	noWait      = 0o4000
	noError     = 0o10000
)

// Sizes of struct shmid64_ds, semid64_ds and msqid64_ds, which begin with
// struct ipc64_perm (asm-generic/ipcbuf.h and its like).
const (
	permSize = 48
	shmSize  = 112
	semSize  = 104
	msgSize  = 120
)

func u32(b []byte, at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
func u64(b []byte, at int) uint64 { return binary.LittleEndian.Uint64(b[at:]) }

func perm(id int, b []byte) Perm {
	return Perm{ID: id, Key: u32(b, 0), UID: u32(b, 4), GID: u32(b, 8), CreatorU: u32(b, 12), CreatorG: u32(b, 16), Mode: u32(b, 20)}
}

func ctl(nr uintptr, id, command int, b []byte) (int, error) {
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	var r uintptr
	var e unix.Errno
	if nr == unix.SYS_SEMCTL {
		r, _, e = unix.RawSyscall6(nr, uintptr(id), 0, uintptr(command), at, 0, 0)
	} else {
		r, _, e = unix.RawSyscall(nr, uintptr(id), uintptr(command), at)
	}
	if e != 0 {
		return 0, e
	}
	return int(r), nil
}

// Any reports whether the namespace has any object at all.
func Any() (bool, error) {
	var b [48]byte // struct shm_info, seminfo, msginfo
	for _, q := range []struct {
		nr      uintptr
		command int
		at      int // of how many there are
	}{{unix.SYS_SHMCTL, shmInfo, 0}, {unix.SYS_SEMCTL, semInfo, 28}, {unix.SYS_MSGCTL, msgInfo, 0}} {
		if _, err := ctl(q.nr, 0, q.command, b[:]); err != nil {
			return false, fmt.Errorf("count the objects of System V IPC: %w", err)
		}
		if u32(b[:], q.at) > 0 {
			return true, nil
		}
	}
	return false, nil
}

// each calls f with the state of all objects of a kind.
func each(nr uintptr, info, stat, size int, f func(id int, b []byte)) error {
	b := make([]byte, size)
	top, err := ctl(nr, 0, info, b)
	if err != nil {
		return err
	}
	for i := range top + 1 {
		id, err := ctl(nr, i, stat, b)
		if err == unix.EINVAL || err == unix.EIDRM { // nothing there
			continue
		}
		if err != nil {
			return err
		}
		f(id, b)
	}
	return nil
}

// Segments lists the shared memory segments.
func Segments() (out []Segment, err error) {
	err = each(unix.SYS_SHMCTL, shmInfo, shmStat, shmSize, func(id int, b []byte) {
		out = append(out, Segment{Perm: perm(id, b), Size: u64(b, permSize), Attached: u64(b, permSize+40)})
	})
	if err != nil {
		return nil, fmt.Errorf("list shared memory segments: %w", err)
	}
	return out, nil
}

// Sets lists the semaphore sets.
func Sets() (out []Set, err error) {
	err = each(unix.SYS_SEMCTL, semInfo, semStat, semSize, func(id int, b []byte) {
		out = append(out, Set{Perm: perm(id, b), Operated: int64(u64(b, permSize)), Semaphores: int(u64(b, permSize+32))})
	})
	if err != nil {
		return nil, fmt.Errorf("list semaphore sets: %w", err)
	}
	return out, nil
}

// Queues lists the message queues.
func Queues() (out []Queue, err error) {
	err = each(unix.SYS_MSGCTL, msgInfo, msgStat, msgSize, func(id int, b []byte) {
		out = append(out, Queue{Perm: perm(id, b), Messages: u64(b, permSize+32), MaxBytes: u64(b, permSize+40)})
	})
	if err != nil {
		return nil, fmt.Errorf("list message queues: %w", err)
	}
	return out, nil
}

// Values are those of all semaphores of a set.
func (s *Set) Values() ([]uint16, error) {
	v := make([]uint16, s.Semaphores)
	if len(v) == 0 {
		return nil, nil
	}
	if _, _, e := unix.RawSyscall6(unix.SYS_SEMCTL, uintptr(s.ID), 0, getAll, uintptr(unsafe.Pointer(&v[0])), 0, 0); e != 0 {
		return nil, fmt.Errorf("values of semaphore set %d: %w", s.ID, e)
	}
	return v, nil
}

// SetValues sets the values of all semaphores of a set. With operated, the set
// counts as one that semop(2) was called for.
func SetValues(id int, v []uint16, operated bool) error {
	if len(v) == 0 {
		return nil
	}
	if operated {
		up := [3]int16{0, 1, noWait} // struct sembuf: number, operation, flags
		if _, _, e := unix.RawSyscall(unix.SYS_SEMOP, uintptr(id), uintptr(unsafe.Pointer(&up[0])), 1); e != 0 {
			return fmt.Errorf("operate on semaphore set %d: %w", id, e)
		}
	}
	if _, _, e := unix.RawSyscall6(unix.SYS_SEMCTL, uintptr(id), 0, setAll, uintptr(unsafe.Pointer(&v[0])), 0, 0); e != 0 {
		return fmt.Errorf("set the values of semaphore set %d: %w", id, e)
	}
	return nil
}

// Peek copies the nth message of a queue, from 0, which stays where it is
// (MSG_COPY, Linux 3.8).
func Peek(queue, n, maxBytes int) (Message, error) {
	b := make([]byte, 8+maxBytes)
	k, _, e := unix.RawSyscall6(unix.SYS_MSGRCV, uintptr(queue), uintptr(unsafe.Pointer(&b[0])), uintptr(maxBytes), uintptr(n), msgCopy|noWait|noError, 0)
	if e != 0 {
		return Message{}, fmt.Errorf("message %d of queue %d: %w", n, queue, e)
	}
	return Message{Type: int64(u64(b, 0)), Text: b[8 : 8+int(k)]}, nil
}

// Send puts a message into a queue.
func Send(queue int, m Message) error {
	b := append(binary.LittleEndian.AppendUint64(nil, uint64(m.Type)), m.Text...)
	if _, _, e := unix.RawSyscall6(unix.SYS_MSGSND, uintptr(queue), uintptr(unsafe.Pointer(&b[0])), uintptr(len(m.Text)), noWait, 0, 0); e != 0 {
		return fmt.Errorf("send a message to queue %d: %w", queue, e)
	}
	return nil
}

// Object is a kind of objects, by the call that controls them.
type Object uintptr

// The kinds.
const (
	SegmentObject Object = unix.SYS_SHMCTL
	SetObject     Object = unix.SYS_SEMCTL
	QueueObject   Object = unix.SYS_MSGCTL
)

// SetPerm gives an object its owner and mode, and a queue its size in bytes.
func (o Object) SetPerm(p Perm, queueBytes uint64) error {
	b := make([]byte, msgSize)
	binary.LittleEndian.PutUint32(b[4:], p.UID)
	binary.LittleEndian.PutUint32(b[8:], p.GID)
	binary.LittleEndian.PutUint32(b[20:], p.Mode&0o777)
	binary.LittleEndian.PutUint64(b[permSize+40:], queueBytes)
	if _, err := ctl(uintptr(o), p.ID, ipcSet, b); err != nil {
		return fmt.Errorf("owner of System V object %d: %w", p.ID, err)
	}
	return nil
}

// Lock keeps a segment in memory.
func Lock(segment int) error {
	if _, err := ctl(unix.SYS_SHMCTL, segment, shmLock, nil); err != nil {
		return fmt.Errorf("lock segment %d: %w", segment, err)
	}
	return nil
}

// Remove removes an object; a segment goes with its last mapping.
func (o Object) Remove(id int) error {
	if _, err := ctl(uintptr(o), id, ipcRemove, nil); err != nil {
		return fmt.Errorf("remove System V object %d: %w", id, err)
	}
	return nil
}

// OpenSegment opens the file that a segment is. Seen from inside it was attached
// and detached again.
func OpenSegment(id int, size uint64, write bool) (int, error) {
	flags, mode := uintptr(shmReadOnly), unix.O_RDONLY
	if write {
		flags, mode = 0, unix.O_RDWR
	}
	at, _, e := unix.RawSyscall(unix.SYS_SHMAT, uintptr(id), 0, flags)
	if e != 0 {
		return -1, fmt.Errorf("attach segment %d: %w", id, e)
	}
	end := (uint64(at) + size + 4095) &^ 4095
	fd, err := unix.Open(fmt.Sprintf("/proc/self/map_files/%x-%x", at, end), mode|unix.O_CLOEXEC, 0)
	_, _, _ = unix.RawSyscall(unix.SYS_SHMDT, at, 0, 0)
	if err != nil {
		return -1, fmt.Errorf("open segment %d: %w", id, err)
	}
	return fd, nil
}

// Within runs f with the calling thread, which the caller has locked, in an IPC
// namespace.
func Within(ns int, f func() error) error {
	own, err := unix.Open("/proc/thread-self/ns/ipc", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("own IPC namespace: %w", err)
	}
	defer unix.Close(own)
	if err := unix.Setns(ns, unix.CLONE_NEWIPC); err != nil {
		return fmt.Errorf("enter an IPC namespace: %w", err)
	}
	err = f()
	if e := unix.Setns(own, unix.CLONE_NEWIPC); e != nil {
		return fmt.Errorf("leave an IPC namespace: %w", e)
	}
	return err
}

// Next has the next object of a kind get a number, for a namespace's root
// (CONFIG_CHECKPOINT_RESTORE).
func (o Object) Next(id int) error {
	name := map[Object]string{SegmentObject: "shm", SetObject: "sem", QueueObject: "msg"}[o]
	fd, err := unix.Open("/proc/sys/kernel/"+name+"_next_id", unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("choose the number of a System V object: %w", err)
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, fmt.Append(nil, id)); err != nil {
		return fmt.Errorf("choose the number %d of a System V object: %w", id, err)
	}
	return nil
}
