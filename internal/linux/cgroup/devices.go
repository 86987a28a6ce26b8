package cgroup

import (
	"errors"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// device is one character device, or with minor < 0 all of a major number.
type device struct{ major, minor int32 }

// allowedDevices is what tasks of a sandbox may open: what its /dev has.
// Numbers: Documentation/admin-guide/devices.txt.
var allowedDevices = []device{
	{1, 3}, {1, 5}, {1, 7}, {1, 8}, {1, 9}, // null, zero, full, random, urandom
	{5, 0}, {5, 1}, {5, 2}, // tty, console, ptmx
	{136, -1}, {137, -1}, {138, -1}, {139, -1}, {140, -1}, {141, -1}, {142, -1}, {143, -1}, // pts
}

// RestrictDevices forbids the group to open or make device nodes other than
// those in a sandbox's /dev.
//
// It is a second wall: a user namespace refuses mknod and mounts with
// devices, but the root of a sandbox is mounted by the host, and an image may
// hold a node of the host's disk. That mount has to be nodev; if it ever is
// not, this refuses the open with EPERM.
//
// The rule is a BPF program of type cgroup_device (4.15), on v2 and hybrid
// alike: it needs no controller. It is loaded once, stays until the directory
// is removed and belongs to no process; calling it again replaces it. Rules
// that were put on groups above it stay in force if they were attached with
// BPF_F_ALLOW_MULTI, as systemd does. Needs CAP_BPF or CAP_SYS_ADMIN.
func (g *Group) RestrictDevices() error { return restrictDevices(g.unified) }

// RestrictDevices is [Group.RestrictDevices] for all groups below the parent,
// present and future. The supervisor of a family needs loop devices and TUN
// and must not be among them.
func (p *Parent) RestrictDevices() error { return restrictDevices(p.Path()) }

// loadDevices loads the program, which lives as long as this process or a
// directory that has it.
var loadDevices = sync.OnceValues(func() (*ebpf.Program, error) {
	return ebpf.NewProgram(&ebpf.ProgramSpec{
		Name:         "sandtree_dev",
		Type:         ebpf.CGroupDevice,
		License:      "MIT",
		Instructions: deviceProgram(allowedDevices),
	})
})

func restrictDevices(path string) error {
	prog, err := loadDevices()
	if err != nil {
		return devicesError(path, err)
	}
	dir, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return devicesError(path, err)
	}
	defer unix.Close(dir)
	// The old attach call, not a link: a link ends with its descriptor.
	err = link.RawAttachProgram(link.RawAttachProgramOptions{
		Target:  dir,
		Program: prog,
		Attach:  ebpf.AttachCGroupDevice,
	})
	if err != nil {
		return devicesError(path, err)
	}
	return nil
}

func devicesError(path string, err error) error {
	kind := fault.Internal
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		kind = fault.Permission
	case errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EINVAL):
		kind = fault.Unsupported
	}
	return fault.New(kind, "restrict devices of cgroup %s: %w", path, err).
		WithHint("the kernel needs CONFIG_CGROUP_BPF and CONFIG_BPF_SYSCALL")
}

// deviceProgram checks struct bpf_cgroup_dev_ctx {u32 access_type (the
// device's type in its low half), major, minor} against the list. It returns
// 1 to allow.
func deviceProgram(allowed []device) asm.Instructions {
	const (
		deviceChar = 2 // BPF_DEVCG_DEV_CHAR
		ctx        = asm.R1
		kind       = asm.R2
		major      = asm.R4
		minor      = asm.R5
	)
	is := asm.Instructions{
		asm.LoadMem(kind, ctx, 0, asm.Word),
		asm.And.Imm(kind, 0xffff),
		asm.LoadMem(major, ctx, 4, asm.Word),
		asm.LoadMem(minor, ctx, 8, asm.Word),
		asm.JNE.Imm(kind, deviceChar, "deny"),
	}
	for _, d := range allowed {
		if d.minor < 0 {
			is = append(is, asm.JEq.Imm(major, d.major, "allow"))
			continue
		}
		// Skip the comparison of the minor number for other majors.
		is = append(is,
			asm.Instruction{OpCode: asm.JNE.Op(asm.ImmSource), Dst: major, Constant: int64(d.major), Offset: 1},
			asm.JEq.Imm(minor, d.minor, "allow"))
	}
	return append(is,
		asm.Mov.Imm(asm.R0, 0).WithSymbol("deny"),
		asm.Return(),
		asm.Mov.Imm(asm.R0, 1).WithSymbol("allow"),
		asm.Return())
}
