package statdev

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

const (
	// maxEntries bounds the map: mounts of all sandboxes. It is filled as it is
	// needed, 64 bytes an entry.
	maxEntries = 1 << 20
	// copies of a program stand behind a call, see the package's comment.
	copies = 2
	// tableName is the map's.
	tableName = "sandtree_dev"
	// license is for the kernel, which gives some helpers to programs alone that
	// may be had under the GPL, too.
	license = "Dual MIT/GPL"
)

// Attachment is a map and the programs behind the kernel's calls. They stay as
// long as it, or a copy of all of its files, is open. A nil one shows nothing.
type Attachment struct {
	table *ebpf.Map
	files []*os.File // the map and the programs' links
}

// Attach loads the programs and puts them behind the kernel's calls. It needs
// root, and the kernel's types (CONFIG_DEBUG_INFO_BTF), BPF trampolines (Linux 5.5) and
// leave to write to programs' memory, which lockdown refuses; an error of kind
// [fault.Unsupported] says that something of it is missing.
//
// The kernel warns in its log of each program that may write to memory.
func Attach() (_ *Attachment, err error) {
	a := &Attachment{}
	defer func() {
		if err != nil {
			a.Close()
			err = attachError(err)
		}
	}()
	loaded, err := ebpf.NewCollection(collection())
	if err != nil {
		return nil, err
	}
	defer loaded.Close() // the links hold the programs
	a.table = loaded.DetachMap(tableName)
	if err := a.keep(a.table.FD()); err != nil {
		return nil, err
	}
	for name, p := range loaded.Programs {
		l, err := link.AttachTracing(link.TracingOptions{Program: p, AttachType: ebpf.AttachTraceFExit})
		if err != nil {
			return nil, fmt.Errorf("attach %s: %w", name, err)
		}
		err = a.keep(l.(interface{ FD() int }).FD())
		_ = l.Close()
		if err != nil {
			return nil, err
		}
	}
	return a, nil
}

// keep opens a copy of a descriptor.
func (a *Attachment) keep(fd int) error {
	c, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("keep a descriptor: %w", err)
	}
	a.files = append(a.files, os.NewFile(uintptr(c), "device numbers"))
	return nil
}

// collection are the map and all programs, which are loaded together: looking
// functions up in the kernel's types takes the most time.
func collection() *ebpf.CollectionSpec {
	s := &ebpf.CollectionSpec{
		Maps: map[string]*ebpf.MapSpec{tableName: {
			Name: tableName, Type: ebpf.Hash, KeySize: 8, ValueSize: 4, MaxEntries: maxEntries, Flags: unix.BPF_F_NO_PREALLOC,
		}},
		Programs: map[string]*ebpf.ProgramSpec{},
	}
	for _, c := range calls {
		for n := range copies {
			s.Programs[fmt.Sprintf("%s.%d", c.function, n)] = &ebpf.ProgramSpec{
				Name: "sandtree_stat", Type: ebpf.Tracing, AttachType: ebpf.AttachTraceFExit, AttachTo: c.function,
				License: license, Instructions: c.instructions(),
			}
		}
	}
	return s
}

// attachError gives a failure its kind. The verifier says EINVAL of a helper
// that it does not give out, and E2BIG comes where too many programs follow a call.
func attachError(err error) error {
	kind := fault.Internal
	switch {
	case isForbidden(err) && privileged():
		// The package's error gives advice that does not help here.
		kind, err = fault.Unsupported, fmt.Errorf("the kernel, or a security module, lets nobody follow calls: %w", unix.EPERM)
	case isForbidden(err):
		kind, err = fault.Permission, unix.EPERM
	case errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOSYS),
		errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.E2BIG), errors.Is(err, unix.EBUSY):
		kind = fault.Unsupported
	}
	return fault.New(kind, "show other device numbers: %w", err)
}

func isForbidden(err error) bool {
	return errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES)
}

// privileged reports whether this process has what loading and attaching needs
// (capabilities(7)), in the machine's first user namespace.
func privileged() bool {
	m, err := os.ReadFile("/proc/self/uid_map")
	if err != nil || !slices.Equal(strings.Fields(string(m)), []string{"0", "0", "4294967295"}) {
		return false
	}
	var has [2]unix.CapUserData
	if unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &has[0]) != nil {
		return false
	}
	for _, c := range []int{unix.CAP_SYS_ADMIN, unix.CAP_PERFMON, unix.CAP_BPF} {
		if has[c/32].Effective&(1<<(c%32)) == 0 {
			return false
		}
	}
	return true
}

// Files are the map and the programs, for [OpenTable] in another process. They
// stay the attachment's.
func (a *Attachment) Files() []*os.File {
	if a == nil {
		return nil
	}
	return a.files
}

// Forget removes what is left of a family, whose user ids begin at base. Its supervisor
// must have ended.
func (a *Attachment) Forget(base uint32) error {
	if a == nil {
		return nil
	}
	// A key that is deleted while the map is walked sends the walk back to its
	// beginning: so they are gathered first.
	var (
		k, v = key{}, uint32(0)
		old  []key
	)
	walk := a.table.Iterate()
	for walk.Next(&k, &v) {
		if k.Range == base>>rangeBits {
			old = append(old, k)
		}
	}
	if err := walk.Err(); err != nil {
		return fault.New(fault.Internal, "forget the device numbers of ids from %#x: %w", base, err)
	}
	for _, k := range old {
		if err := a.table.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fault.New(fault.Internal, "forget the device numbers of ids from %#x: %w", base, err)
		}
	}
	return nil
}

// Close gives up the descriptors. Where nobody else has them, the programs are
// gone with it.
func (a *Attachment) Close() {
	if a == nil {
		return
	}
	for _, f := range a.files {
		_ = f.Close()
	}
	a.files = nil
	if a.table != nil {
		_ = a.table.Close()
		a.table = nil
	}
}
