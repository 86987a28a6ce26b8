// Package control holds the verbs of the host's socket: what the unprivileged
// node asks of the root part of the daemon, and what that reports by itself.
//
// The node gets the socket as a descriptor at its start, see [Inherited].
package control

import "time"

// Verbs of the host.
const (
	VerbInfo         = "info"          // nothing → Info
	VerbReady        = "ready"         // the node serves the API: nothing → nothing
	VerbEnsureFamily = "ensure_family" // EnsureFamilyRequest → Family, with a socket of its supervisor
	VerbFamilies     = "families"      // nothing → FamiliesReply, with a socket of each one's supervisor, in order
	VerbEndFamily    = "end_family"    // FamilyRequest → nothing
	VerbStats        = "stats"         // nothing → Stats
)

// Events that the host sends by itself.
const (
	EventSupervisorDied = "supervisor_died" // SupervisorDied
	EventLowDisk        = "low_disk"        // LowDisk
	EventStopping       = "stopping"        // Stopping
)

// Descriptors that a node is started with.
const (
	// FDControl is the connection to the host. When it ends, the node ends.
	FDControl = 3
	// FDListener is the listening API socket, which outlives the node:
	// clients wait in its queue while the host starts the next one.
	FDListener = 4
)

// FDHeld is a descriptor that every process of the daemon keeps: the lock on
// it tells the next daemon when the last of them is gone.
const FDHeld = 5

// Info says what runs, and where.
type Info struct {
	Version string `json:"version"`
	// State is the state directory; NodeState is where the node finds its
	// own parts of it (images, node, sessions).
	State     string    `json:"state"`
	NodeState string    `json:"node_state"`
	Socket    string    `json:"socket"`
	PID       int       `json:"pid"`
	NodePID   int       `json:"node_pid"`
	Started   time.Time `json:"started"`
	UptimeNS  int64     `json:"uptime_ns"`
	// NodeStarts counts the nodes started so far: 1 unless one has died.
	NodeStarts int `json:"node_starts"`
	// Cgroup names the cgroup hierarchies in use, MissingControllers the
	// limits that they cannot set.
	Cgroup             string   `json:"cgroup"`
	MissingControllers []string `json:"missing_controllers,omitempty"`
	Families           []Family `json:"families"`
}

// EnsureFamilyRequest names a family and what its sandboxes are made of.
type EnsureFamilyRequest struct {
	// Family is of lower-case letters, digits and dashes, at most 63.
	Family string `json:"family"`
	// Layers are the sha256 digests, in hex, of the EROFS images, the topmost
	// first. They must be in the layers directory.
	Layers []string `json:"layers"`
	// DiskBytes bounds the family's pool. Zero means no bound but the disk.
	DiskBytes int64 `json:"disk_bytes,omitempty"`
}

// Family is a running family.
type Family struct {
	ID      string    `json:"id"`
	PID     int       `json:"pid"` // of the supervisor
	Started time.Time `json:"started"`
	Layers  []string  `json:"layers"`
	// IDBase is the host's id of root inside.
	IDBase uint32 `json:"id_base"`
}

// FamiliesReply lists the running families by id.
type FamiliesReply struct {
	Families []Family `json:"families"`
}

// FamilyRequest names a family. To end one that does not run, or is not
// known, is no error: it gives back what is kept for it.
type FamilyRequest struct {
	Family string `json:"family"`
}

// Stats are figures of one moment.
type Stats struct {
	// DiskFreeBytes is what is free on the disk of the state directory;
	// pools leave DiskReserveBytes of it.
	DiskFreeBytes    int64         `json:"disk_free_bytes"`
	DiskReserveBytes int64         `json:"disk_reserve_bytes"`
	Families         []FamilyStats `json:"families"`
}

// FamilyStats are the figures of a family.
type FamilyStats struct {
	ID string `json:"id"`
	// PoolBytes is the size of the pool's file, PoolFreeBytes what is free in
	// its file system.
	PoolBytes     int64 `json:"pool_bytes"`
	PoolFreeBytes int64 `json:"pool_free_bytes"`
}

// SupervisorDied reports a family that ended though nobody asked. All that it
// had is cleaned up by then; its sandboxes are lost.
//
// The event may come after the reply to an EnsureFamilyRequest that has
// started the family again: PID, as in [Family], says which supervisor is
// meant.
type SupervisorDied struct {
	Family string `json:"family"`
	PID    int    `json:"pid"`
	Reason string `json:"reason"`
}

// Stopping reports that the daemon is about to end. The node hibernates what runs
// and ends by itself; it is killed when the time is over.
type Stopping struct {
	WithinNS int64 `json:"within_ns"`
}

// StoppedFile is where the node leaves [Stopped] when it has ended for that, in its
// directory.
const StoppedFile = "stopped.json"

// Stopped says what the daemon's end did to sandboxes.
type Stopped struct {
	Time       time.Time `json:"time"`
	Hibernated int       `json:"hibernated"`
	Lost       []Loss    `json:"lost,omitempty"`
}

// Loss is a state of a sandbox that is not there any more. Name is the sandbox's,
// or its id.
type Loss struct {
	Sandbox string `json:"sandbox"`
	Name    string `json:"name"`
	What    string `json:"what"`
	// Wished is set for a checkpoint that was to be in memory alone.
	Wished bool `json:"wished,omitempty"`
}

// LowDisk reports that the disk of the state directory runs full. It is sent
// once each time the free space falls below twice the reserve.
type LowDisk struct {
	FreeBytes    int64 `json:"free_bytes"`
	ReserveBytes int64 `json:"reserve_bytes"`
}
