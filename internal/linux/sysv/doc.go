// Package sysv reads and makes objects of System V IPC (sysvipc(7)): shared
// memory segments, semaphore sets and message queues, in the IPC namespace of
// the calling thread. Numbers of users and groups are those of this process's
// user namespace.
package sysv

// Perm is what all objects have.
type Perm struct {
	ID                 int
	Key                uint32
	UID, GID           uint32 // of the owner
	CreatorU, CreatorG uint32
	Mode               uint32 // with the bits of the segment's state
}

// Bits of a segment's mode (shmctl(2)).
const (
	ModeRemoved = 0o1000 // SHM_DEST: goes with its last mapping
	ModeLocked  = 0o2000 // SHM_LOCKED
)

// Segment is a shared memory segment.
type Segment struct {
	Perm
	Size     uint64
	Attached uint64
}

// Set is a semaphore set.
type Set struct {
	Perm
	Semaphores int
	Operated   int64 // when the last semop(2) was, in seconds; 0: never
}

// Queue is a message queue.
type Queue struct {
	Perm
	Messages uint64
	MaxBytes uint64
}

// Message is one of a queue.
type Message struct {
	Type int64
	Text []byte
}
