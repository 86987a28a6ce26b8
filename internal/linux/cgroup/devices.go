package cgroup

import (
	"errors"
	"os"

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

// RestrictDevices forbids all groups below the parent, present and future, to
// open or make device nodes other than those in a sandbox's /dev.
//
// It is a second wall: a user namespace refuses mknod and mounts with
// devices, but the root of a sandbox is mounted by the host, and an image may
// hold a node of the host's disk. That mount has to be nodev; if it ever is
// not, this refuses the open with EPERM.
//
// The rule is a BPF program of type cgroup_device (4.15), on v2 and hybrid
// alike: it needs no controller. It stays until the directory is removed and
// belongs to no process; calling it again replaces it. Rules that were put on
// groups above it stay in force if they were attached with
// BPF_F_ALLOW_MULTI, as systemd does. Needs CAP_BPF or CAP_SYS_ADMIN.
//
// The seeds, zygotes and supervisor of a family need loop devices or TUN and
// must not be below this parent.
func (p *Parent) RestrictDevices() error {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name:         "sandtree_dev",
		Type:         ebpf.CGroupDevice,
		License:      "MIT",
		Instructions: deviceProgram(allowedDevices),
	})
	if err != nil {
		return devicesError(p, err)
	}
	defer prog.Close()
	dir, err := os.Open(p.Path())
	if err != nil {
		return devicesError(p, err)
	}
	defer dir.Close()
	// The old attach call, not a link: a link ends with its descriptor.
	err = link.RawAttachProgram(link.RawAttachProgramOptions{
		Target:  int(dir.Fd()),
		Program: prog,
		Attach:  ebpf.AttachCGroupDevice,
	})
	if err != nil {
		return devicesError(p, err)
	}
	return nil
}

func devicesError(p *Parent, err error) error {
	kind := fault.Internal
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		kind = fault.Permission
	case errors.Is(err, ebpf.ErrNotSupported), errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EINVAL):
		kind = fault.Unsupported
	}
	return fault.New(kind, "restrict devices below cgroup %s: %w", p.rel, err).
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
