package control

import (
	"time"
)

// DiffRequest compares the files of two checkpoints of one tree; an empty To
// means the live state.
type DiffRequest struct {
	Sandbox string `json:"sandbox"`
	From    string `json:"from"`
	To      string `json:"to,omitempty"`
}

// Change is one path that differs. Kind is "A" (added), "M" (changed) or
// "D" (deleted).
type Change struct {
	Path string `json:"path"`
	Kind string `json:"kind"`
}

// DiffReply lists changes by path.
type DiffReply struct {
	Changes []Change `json:"changes"`
}

// FileRequest is one file operation.
type FileRequest struct {
	Sandbox  string `json:"sandbox"`
	Op       string `json:"op"`
	Path     string `json:"path"`
	NoFollow bool   `json:"no_follow,omitempty"`
	Mode     uint32 `json:"mode,omitempty"` // permission bits, setuid and sticky included
	UID      int    `json:"uid,omitempty"`  // inside
	GID      int    `json:"gid,omitempty"`
	Target   string `json:"target,omitempty"`
}

// Entry describes a file inside.
type Entry struct {
	Name   string    `json:"name"`
	Mode   uint32    `json:"mode"` // st_mode
	UID    int       `json:"uid"`
	GID    int       `json:"gid"`
	Size   int64     `json:"size"`
	MTime  time.Time `json:"mtime"`
	Target string    `json:"target,omitempty"`
}

// FileReply answers a FileRequest.
type FileReply struct {
	Entry   Entry   `json:"entry"`
	Entries []Entry `json:"entries,omitempty"`
}

// File operations, all done inside the sandbox's root, which no path leaves
// (openat2 with RESOLVE_IN_ROOT).
const (
	FileStat     = "stat"     // Path, NoFollow → Entry
	FileList     = "list"     // Path → Entries, by name
	FileOpen     = "open"     // Path → descriptor of a regular file, read only
	FileCreate   = "create"   // Path, Mode, UID, GID → descriptor, write only; truncates
	FileMkdir    = "mkdir"    // Path, Mode, UID, GID
	FileSymlink  = "symlink"  // Path, Target, UID, GID
	FileReadlink = "readlink" // Path → Entry.Target
	FileRename   = "rename"   // Path, a file; Target, the path it gets, in the place of the file there
	FileRemove   = "remove"   // Path, no directory; a link itself
)
