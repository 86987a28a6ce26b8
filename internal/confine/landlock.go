package confine

import (
	"encoding/binary"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/linux/feature"
	"github.com/sandtree/sandtree/internal/tracee"
)

// Landlock lets processes write below certain paths only; they read and
// execute everywhere (landlock(7), 5.13).
//
// It is off by default, since nothing is left for it to protect: proc, sysfs
// and cgroup files are read-only mounts that root inside cannot change, and
// Landlock can name only what is allowed, not what is forbidden below an
// allowed directory. It also has a price: processes of two commands are in
// two domains and cannot trace each other, so a debugger does not attach
// across sessions. A template whose root must stay as it is, save for a few
// directories, has a use for it.
type Landlock struct {
	// Writable are absolute paths inside that exist, such as /tmp and /dev.
	Writable []string
}

// Rights of files, linux/landlock.h.
const (
	landlockExecute  = 1 << 0
	landlockReadFile = 1 << 2
	landlockReadDir  = 1 << 3
	landlockRefer    = 1 << 13 // ABI 2
	landlockTruncate = 1 << 14 // ABI 3
	landlockIoctlDev = 1 << 15 // ABI 5
	landlockABI1     = 1<<13 - 1

	landlockPathBeneath = 1 // enum landlock_rule_type
)

func (l *Landlock) check() error {
	for _, p := range l.Writable {
		if !filepath.IsAbs(p) {
			return fault.New(fault.Invalid, "Landlock path %q is not absolute", p)
		}
	}
	_, err := feature.LandlockABI()
	return err
}

// handled are the rights that this kernel can restrict.
func handled() uint64 {
	abi, err := feature.LandlockABI()
	if err != nil {
		return 0
	}
	rights := uint64(landlockABI1)
	if abi >= 2 {
		rights |= landlockRefer
	}
	if abi >= 3 {
		rights |= landlockTruncate
	}
	if abi >= 5 {
		rights |= landlockIoctlDev
	}
	return rights
}

func (l *Landlock) queue(b *tracee.Batch) {
	all := handled()
	set := b.Call(unix.SYS_LANDLOCK_CREATE_RULESET, b.PutWords(all), 8, 0)
	allow := func(path string, rights uint64) {
		fd := b.Call(unix.SYS_OPEN, path, unix.O_PATH|unix.O_CLOEXEC, 0)
		// struct landlock_path_beneath_attr {u64 rights; s32 fd}, packed; what
		// is put next lies next.
		rule := b.Put(binary.LittleEndian.AppendUint64(nil, rights))
		b.Store(b.Put(make([]byte, 8)), fd, 4)
		b.Call(unix.SYS_LANDLOCK_ADD_RULE, set, landlockPathBeneath, rule, 0)
		b.Call(unix.SYS_CLOSE, fd)
	}
	allow("/", landlockExecute|landlockReadFile|landlockReadDir|all&landlockIoctlDev)
	for _, p := range l.Writable {
		allow(p, all)
	}
	b.Call(unix.SYS_LANDLOCK_RESTRICT_SELF, set, 0)
	b.Call(unix.SYS_CLOSE, set)
}
