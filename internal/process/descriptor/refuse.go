package descriptor

import (
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
)

// refuse says that a description cannot be captured: what it is, who has it
// and what to do.
func (c *Capturer) refuse(d *description, what, todo string) *fault.Error {
	if d.left {
		return fault.New(fault.Uncapturable, "there is %s that nobody has open, which a checkpoint cannot keep", what).WithHint("%s, then try again", todo)
	}
	p := &c.procs[d.proc]
	if d.carried {
		return fault.New(fault.Uncapturable, "process %d (%s) has %s on its way in the socket that is descriptor %d, which a checkpoint cannot keep",
			p.PID, p.Comm, what, d.num).WithHint("let it receive that, then try again").Passing()
	}
	return fault.New(fault.Uncapturable, "process %d (%s) has %s as descriptor %d, which a checkpoint cannot keep",
		p.PID, p.Comm, what, d.num).WithHint("%s, then try again", todo)
}

// refuseUnknown refuses what no kind has claimed, by its name.
func (c *Capturer) refuseUnknown(d *description) error {
	link, err := c.linkOf(d)
	if err != nil {
		return err
	}
	return c.refuse(d, nameOf(d, link, c.system(d)), "close it or end the process")
}

// anonymous are the names of anonymous inodes that are refused, as the link
// in /proc/PID/fd shows them.
var anonymous = map[string]string{
	"[fanotify]":         "a fanotify group",
	"[pidfd]":            "a pidfd",
	"[io_uring]":         "an io_uring",
	"[userfaultfd]":      "a userfaultfd",
	"bpf-map":            "a BPF map",
	"bpf-prog":           "a BPF program",
	"bpf_link":           "a BPF link",
	"btf":                "BPF type information",
	"[perf_event]":       "a perf event",
	"[fscontext]":        "a file system context",
	"seccomp notify":     "a seccomp listener",
	"[landlock-ruleset]": "a Landlock ruleset",
}

// systemNames are file systems of the kernel's own whose files are refused.
var systemNames = map[uint32]string{
	unix.NSFS_MAGIC:          "a namespace",
	unix.PID_FS_MAGIC:        "a pidfd",
	unix.SECRETMEM_MAGIC:     "secret memory",
	unix.BPF_FS_MAGIC:        "a BPF object",
	mqueueMagic:              "a message queue",
	unix.DEBUGFS_MAGIC:       "a file of debugfs",
	unix.TRACEFS_MAGIC:       "a file of tracefs",
	unix.ANON_INODE_FS_MAGIC: "an anonymous file",
}

const mqueueMagic = 0x19800202 // ipc/mqueue.c

func nameOf(d *description, link string, system uint32) string {
	if name, ok := strings.CutPrefix(link, "anon_inode:"); ok {
		if s, ok := anonymous[name]; ok {
			return s
		}
		return "an anonymous file of the kernel (" + name + ")"
	}
	if strings.HasPrefix(link, memfdPrefix) {
		return "a memfd of huge pages (" + link + ")"
	}
	if s, ok := systemNames[system]; ok {
		return s
	}
	switch d.format() {
	case unix.S_IFSOCK:
		return nameOfSocket(d.fd)
	case unix.S_IFBLK:
		return "the block device " + link
	case unix.S_IFCHR:
		return "the device " + link
	}
	return link
}

func nameOfSocket(fd int) string {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return "a socket"
	}
	typ, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	switch domain {
	case unix.AF_UNIX:
		return "a unix socket"
	case unix.AF_INET, unix.AF_INET6:
		switch typ {
		case unix.SOCK_STREAM:
			return "a TCP socket"
		case unix.SOCK_DGRAM:
			return "a UDP socket"
		}
		return "a raw IP socket"
	case unix.AF_NETLINK:
		return "a netlink socket"
	case unix.AF_PACKET:
		return "a packet socket"
	case unix.AF_VSOCK:
		return "a vsock socket"
	}
	return "a socket"
}
