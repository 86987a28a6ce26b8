package control

import (
	"time"
)

// Resources bound one sandbox. Zero means no bound of its own.
type Resources struct {
	MemoryBytes int64   `json:"memory_bytes,omitempty"`
	CPUs        float64 `json:"cpus,omitempty"`
	PIDs        int64   `json:"pids,omitempty"`
	DiskBytes   int64   `json:"disk_bytes,omitempty"`
}

// CreateRequest boots a sandbox.
type CreateRequest struct {
	Sandbox   string    `json:"sandbox"`
	Hostname  string    `json:"hostname"`
	Resources Resources `json:"resources"`
	// Setuid allows setuid programs to gain privilege inside: no_new_privs
	// stays off and the filter is installed before capabilities are dropped.
	Setuid bool `json:"setuid,omitempty"`
}

// SandboxRequest names a sandbox.
type SandboxRequest struct {
	Sandbox string `json:"sandbox"`
}

// Sandbox is one sandbox as its supervisor sees it.
type Sandbox struct {
	ID        string    `json:"id"`
	Hostname  string    `json:"hostname"`
	Created   time.Time `json:"created"`
	Resources Resources `json:"resources"`
	// Generation counts incarnations: 0 after create, one more after each
	// rollback. A fork starts at 0 again.
	Generation uint64 `json:"generation"`
	// At is the checkpoint that the live state descends from; empty before
	// the first one.
	At    string `json:"at,omitempty"`
	Alive bool   `json:"alive"`
	// Suspended is the checkpoint at which it was suspended. It has no body
	// then; its sessions have not ended.
	Suspended string    `json:"suspended,omitempty"`
	Sessions  []Session `json:"sessions,omitempty"`
}

// ListReply is everything that a new node must know.
type ListReply struct {
	Sandboxes []Sandbox `json:"sandboxes"`
}

// SandboxEnded reports that an incarnation is gone though nobody removed it.
type SandboxEnded struct {
	Sandbox string `json:"sandbox"`
	Reason  string `json:"reason"`
}

// Stats are a sandbox's figures of one moment.
type Stats struct {
	Sandbox         string `json:"sandbox"`
	CPUNS           int64  `json:"cpu_ns"`
	MemoryBytes     int64  `json:"memory_bytes"`
	MemoryMaxBytes  int64  `json:"memory_max_bytes,omitempty"`
	PIDs            int64  `json:"pids"`
	PIDsMax         int64  `json:"pids_max,omitempty"`
	DiskBytes       int64  `json:"disk_bytes"`
	DiskMaxBytes    int64  `json:"disk_max_bytes,omitempty"`
	OOMKills        int64  `json:"oom_kills"`
	Checkpoints     int    `json:"checkpoints"`
	CheckpointBytes int64  `json:"checkpoint_bytes"`
	// CheckpointMemory is what the checkpoints that are in memory take there, in
	// bytes; FamilyMemory is the same of all of the family, MachineMemory of all
	// families, and FamilyMemoryMax the budget, which is for all of them.
	CheckpointMemory int64 `json:"checkpoint_memory"`
	FamilyMemory     int64 `json:"family_memory"`
	FamilyMemoryMax  int64 `json:"family_memory_max"`
	MachineMemory    int64 `json:"machine_memory"`
}
