package durable

import (
	"io"
	"time"

	"github.com/sandtree/sandtree/internal/durable/machine"
	"github.com/sandtree/sandtree/internal/durable/pages"
	"github.com/sandtree/sandtree/internal/process/image"
)

// Checkpoint is what [Repository.Write] is to keep. Everything it refers to
// must stay as it is until Write has returned, and stays the caller's.
type Checkpoint struct {
	// ID names the record: 1 to 127 lower-case letters, digits, dots, dashes
	// and underscores, the first a letter or digit.
	ID string
	// Parent is the record that Memory and Files are told against; empty if
	// there is none. It must be in the repository.
	Parent string
	// Sandbox and Name are for those who list records.
	Sandbox, Name string
	Created       time.Time
	// Layers are the digests of the template's layers, the topmost first.
	Layers []string
	// Tree is the image of the processes; nil for a checkpoint of files
	// alone. Files in it (fields of type *os.File, and fields of type int that
	// are named FD, where they are not negative) are kept with their content
	// and holes.
	Tree *image.Tree
	// Memory is the private memory of the tree's processes, one for each that
	// has any.
	Memory []Pages
	// Upper is an open directory: the upper directory of a read-only
	// snapshot, with owners as they are inside. It is -1 if there is none.
	// Files that did not change since the parent are found by the file system
	// (see package upper) and not read.
	Upper int
	// Sections are the caller's own data by name: structs or maps of what
	// package cbor takes. Files in them are kept like those of Tree.
	Sections map[string]any
}

// Span is a range of addresses, from Start up to but not including End. Both
// are multiples of the page size, 4096.
type Span = pages.Span

// Pages is the private memory of one process, told as the difference from the
// parent's record. It is applied in the order of the fields: pages of the
// parent outside of Mapped go, then those in Gone; then those in Changed come.
type Pages struct {
	// PID is the process's number inside, by which the parent's record knows
	// it, too.
	PID int
	// Full is set if nothing of the parent's pages is kept: Mapped and Gone
	// mean nothing then.
	Full bool
	// Mapped are the private mappings of now.
	Mapped []Span
	// Gone lost the pages that it had: they were dropped, or the mapping is
	// another one than the parent had there.
	Gone []Span
	// Changed are the pages that were written since, and that are the
	// process's own. Whatever else is mapped reads as zero or as the mapped
	// file.
	Changed []Span
	// Source reads the pages in Changed; the offset is the address. Nothing
	// else is read. It may be read by several goroutines at once.
	Source io.ReaderAt
}

// Info describes a record.
type Info struct {
	ID, Parent    string
	Sandbox, Name string
	Created       time.Time
	Layers        []string
	// Machine is what a machine needs to run it.
	Machine machine.Machine
	// Writer is the version of sandtree that wrote it.
	Writer string
	// Processes is the number of processes. MemoryBytes counts their own
	// pages, FileBytes the content of the upper's files, each as if nothing
	// was shared.
	Processes   int
	MemoryBytes int64
	FileBytes   int64
	// ReadBytes is what the write had to read, NewBytes what it added to the
	// repository, compressed and with all overhead.
	ReadBytes int64
	NewBytes  int64
}
