package image

// SystemV are the objects of System V IPC (sysvipc(7)), which belong to no
// process.
type SystemV struct {
	Segments []Segment
	Sets     []SemaphoreSet
	Queues   []MessageQueue
}

// Object is what all of them have. Users and groups are those inside.
type Object struct {
	ID       int
	Key      uint32 // 0: private
	UID, GID int    // of the owner
	// CreatorUID and CreatorGID made it, and have the owner's rights.
	CreatorUID, CreatorGID int
	Mode                   uint32 // permissions
}

// Segment is a shared memory segment.
type Segment struct {
	Object
	Size    int64 // in bytes
	Content *Blob
	Locked  bool // SHM_LOCK
	Removed bool // goes with its last mapping
}

// SemaphoreSet is a set of semaphores.
type SemaphoreSet struct {
	Object
	Values   []uint16
	Operated bool // by semop(2), so that sem_otime is not 0
}

// MessageQueue is a queue with its messages, the oldest first.
type MessageQueue struct {
	Object
	MaxBytes uint64
	Messages []QueueMessage
}

// QueueMessage is one of a System V message queue.
type QueueMessage struct {
	Type int64
	Text []byte
}
