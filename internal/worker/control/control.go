// Package control holds the verbs of a worker's socket: what a supervisor asks
// of the process that does the long work on a family's checkpoints, and what
// the two tell each other of one.
//
// Checkpoints are large and full of descriptors. They travel as files of
// memory with their encoding, and their descriptors behind it, see [pack].
package control

import (
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/durable"
	"github.com/sandtree/sandtree/internal/linux/xattr"
	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/process/memory"
	supervisor "github.com/sandtree/sandtree/internal/supervisor/control"
)

// Verbs of a worker.
const (
	VerbAttach = "attach" // nothing, with the file of a [Gate] → nothing
	VerbWrite  = "write"  // a packed Checkpoint → durable.Info
	VerbList   = "list"   // nothing → ListReply
	VerbRead   = "read"   // RecordRequest → a packed Stored
	VerbUnpack = "unpack" // RecordRequest, with a directory → nothing
	VerbRemove = "remove" // RecordRequest → nothing; the space comes back later
	VerbVerify = "verify" // RecordsRequest → VerifyReply
	VerbExport = "export" // ExportRequest, with a file that is written → nothing
	VerbImport = "import" // ImportRequest, with a file that is read → ListReply
)

// VerbClient hands a worker a client: nothing, with one connected unix stream
// socket → nothing. For the host alone, on the connection that the worker was
// started with.
const VerbClient = "client"

// Descriptors that a worker is started with.
const (
	// FDControl is the connection to the host. When it ends, so does the
	// worker.
	FDControl = 3
	// FDConfig is a file with a Config in JSON.
	FDConfig = 4
)

// Config is what a worker must know.
type Config struct {
	Family string `json:"family"`
	// Repository is the directory of the family's durable checkpoints.
	Repository string `json:"repository"`
	// Layers are the digests of the template's layers, the topmost first.
	Layers []string `json:"layers"`
	// OtherKernel takes checkpoints of another kernel release, where all that
	// programs have of the kernel in their memory is the same.
	OtherKernel bool `json:"other_kernel,omitempty"`
}

// Checkpoint is what a worker is to write. What its files show must stay until
// the reply.
type Checkpoint struct {
	ID      string
	Parent  string // record that Memory and the files are told against, or empty
	Sandbox string
	Name    string
	Created time.Time
	Awaited bool // somebody waits for it to be durable
	Tree    *image.Tree
	Memory  []Memory
	// Upper is the directory of the snapshot's files (rootfs.Store.Content).
	Upper *os.File
	State State
}

// Memory is durable.Pages of one process, as a zygote has it.
type Memory struct {
	PID                   int
	Full                  bool
	Mapped, Gone, Changed []durable.Span
	// Windows say where the process's memory stands in Source, the memory of
	// its zygote.
	Windows []memory.Window
	Source  *os.File
}

// Section is the name under which a record has a State.
const Section = "sandbox"

// State is what a checkpoint has beside files, processes and memory. Ids of
// users are the host's, those of the family from IDBase on.
type State struct {
	IDBase    uint32
	Hostname  string
	Setuid    bool
	Resources supervisor.Resources
	Sessions  []Session
	Shm       []MemoryFile // of /dev/shm
	Dev       []MemoryFile // what of /dev is not as in a new sandbox; none in records of older versions
	Backings  []Backing
	Guards    []Guard
	Report    supervisor.Checkpoint
}

// Session is one that ran.
type Session struct {
	Session     supervisor.Session
	StdinClosed bool
}

// MemoryFile is a file of a file system that is memory, parents before what is in them.
type MemoryFile struct {
	Path     string // relative
	Mode     uint32 // st_mode; 0: there is no file, where a new sandbox has one
	UID, GID uint32
	Size     int64
	Link     string   // of a symbolic link
	Data     *os.File // of a regular file, unless it has Content or nothing
	Content  []byte   // of a small regular file; none in records of older versions
	First    string   // of another name of the same file
	Rdev     uint64   // of a device
	// Ino and the times are as programs remember them; zero in records of older
	// versions.
	Ino                uint64
	Accessed, Modified unix.Timespec
	// Attributes have the host's ids in access control lists.
	Attributes []xattr.Attribute
}

// Guard is a run of guard pages of a process (MADV_GUARD_INSTALL).
type Guard struct {
	PID        int
	Start, End uint64
}

// Backing is the file of a private mapping that no path leads to.
type Backing struct {
	PID   int
	Start uint64 // of the mapping, in the process
	File  *os.File
}

// Stored is a record that was read.
type Stored struct {
	Info  durable.Info
	Tree  *image.Tree
	State State
	// Pages has the private memory of all processes, where Runs say. What
	// several have at the same address with the same content stands in it once.
	Pages *os.File
	Runs  []Run
}

// Run is a run of pages of one process.
type Run struct {
	PID  int
	Addr uint64
	Len  uint64
	At   int64 // in Stored.Pages
}

// RecordRequest names a record.
type RecordRequest struct {
	ID string `json:"id"`
}

// ExportRequest names records that are exported; none means all. Parents are as in
// durable.ExportOptions.
type ExportRequest struct {
	IDs     []string          `json:"ids"`
	Parents map[string]string `json:"parents,omitempty"`
}

// RecordsRequest names records; none means all.
type RecordsRequest struct {
	IDs []string `json:"ids,omitempty"`
}

// ListReply lists records, parents before children.
type ListReply struct {
	Records []durable.Info `json:"records"`
	// Broken says which could not be read, and why.
	Broken string `json:"broken,omitempty"`
}

// VerifyReply lists what is broken.
type VerifyReply struct {
	Problems []durable.Problem `json:"problems"`
}

// ImportRequest says what an import is to become.
type ImportRequest struct {
	// Salt makes the records' new ids: equal ones for equal salts and old ids.
	Salt string `json:"salt"`
}
