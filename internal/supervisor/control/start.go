package control

import "github.com/sandtree/sandtree/internal/linux/statdev"

// Verbs of a supervisor that the host alone uses, on the connection that the
// supervisor was started with.
const (
	// VerbReady waits until the engine runs, or returns why it cannot:
	// nothing → nothing.
	VerbReady = "ready"
	// VerbClient hands the supervisor one more client: nothing, with one
	// connected unix stream socket → nothing.
	VerbClient = "client"
	// VerbWorker hands the supervisor the family's worker, the first and each
	// one that takes the place of one that died: nothing, with one connected
	// unix stream socket → nothing.
	VerbWorker = "worker"
)

// Descriptors that a supervisor is started with.
const (
	// FDControl is the connection to the host. When it ends, so does the
	// supervisor.
	FDControl = 3
	// FDConfig is a file with a Config in JSON.
	FDConfig = 4
	// FDNumbers is the first of [Config.Numbers] descriptors. What is
	// between is the host's, and stays open.
	FDNumbers = 6
)

// Config is what a supervisor must know about its family. Paths are in the
// mount namespace that it inherits from the host.
type Config struct {
	Family string `json:"family"`
	// Pool is the mount point of the family's btrfs.
	Pool string `json:"pool"`
	// Layers are the mount points of the EROFS layers, the topmost first.
	Layers []string `json:"layers"`
	// Attach is an empty directory at which the store may attach mounts of its
	// own, which kernels before 6.15 need; empty for none.
	Attach string `json:"attach,omitempty"`
	// CgroupParent is the daemon's name in the cgroup hierarchies, and
	// CgroupFamily the family's below it (cgroup.Layout.OpenParent and
	// cgroup.Parent.Child). Both exist.
	CgroupParent string `json:"cgroup_parent"`
	CgroupFamily string `json:"cgroup_family"`
	// IDBase is the host's user and group id of root inside; 65536 ids from
	// it on are the family's.
	IDBase uint32 `json:"id_base"`
	// Durable is set if the host runs a worker for the family.
	Durable bool `json:"durable,omitempty"`
	// NoStandbys keeps no finished bodies ready for rollbacks: they take
	// longer, and no memory beforehand.
	NoStandbys bool `json:"no_standbys,omitempty"`
	// Numbers is how many descriptors there are of what shows device numbers
	// (statdev.Attachment.Files); 0 where the kernel cannot.
	Numbers int `json:"numbers,omitempty"`
	// Devices is what was opened of these.
	Devices *statdev.Table `json:"-"`
	// CheckpointMemory is how many bytes the checkpoints of all families may take
	// in memory, about; 0 means a quarter of the machine's.
	CheckpointMemory int64 `json:"checkpoint_memory,omitempty"`
	// Shared is set if there is the descriptor of a [Ledger], behind those of
	// Numbers, in which the family has the account Row.
	Shared bool `json:"shared,omitempty"`
	Row    int  `json:"row,omitempty"`
	// Ledger is what was opened of it, and the engine's from then on; nil: the
	// family is alone.
	Ledger *Ledger `json:"-"`
	// HeapBytes is the soft limit of the supervisor's own heap; 0 means the
	// default.
	HeapBytes int64 `json:"heap_bytes,omitempty"`
}
