package confine

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/tracee"
)

// Capabilities is a set of capabilities, bit n for number n (capabilities(7)).
type Capabilities uint64

// DefaultCapabilities bounds the processes of a sandbox. See the package
// comment for the differences from Docker's.
const DefaultCapabilities = Capabilities(1<<unix.CAP_CHOWN |
	1<<unix.CAP_DAC_OVERRIDE |
	1<<unix.CAP_FOWNER |
	1<<unix.CAP_FSETID |
	1<<unix.CAP_KILL |
	1<<unix.CAP_NET_BIND_SERVICE |
	1<<unix.CAP_NET_RAW |
	1<<unix.CAP_SETFCAP |
	1<<unix.CAP_SETGID |
	1<<unix.CAP_SETPCAP |
	1<<unix.CAP_SETUID |
	1<<unix.CAP_SYS_CHROOT)

// CheckpointRestore is what a process needs to give its children and threads
// the numbers that they had (clone3's set_tid, 5.9).
const CheckpointRestore = Capabilities(1 << unix.CAP_CHECKPOINT_RESTORE)

var capabilityNames = [...]string{
	"CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
	"LINUX_IMMUTABLE", "NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER",
	"SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE",
	"SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP",
	"MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF",
	"CHECKPOINT_RESTORE",
}

// Has tells whether capability n is in the set.
func (c Capabilities) Has(n int) bool { return c>>n&1 != 0 }

// Names lists the set, such as "CAP_CHOWN"; an unknown one as "CAP_63".
func (c Capabilities) Names() []string {
	names := make([]string, 0, bits.OnesCount64(uint64(c)))
	for n := range 64 {
		if !c.Has(n) {
			continue
		}
		if n < len(capabilityNames) {
			names = append(names, "CAP_"+capabilityNames[n])
		} else {
			names = append(names, fmt.Sprintf("CAP_%d", n))
		}
	}
	return names
}

func (c Capabilities) String() string {
	if c == 0 {
		return "none"
	}
	return strings.Join(c.Names(), " ")
}

// capset queues the sets of the calling thread.
func capset(b *tracee.Batch, effective, permitted, inheritable Capabilities) {
	const version3 = 0x20080522 // _LINUX_CAPABILITY_VERSION_3
	header := b.PutWords(version3)
	var data []byte
	for _, shift := range []int{0, 32} {
		for _, set := range []Capabilities{effective, permitted, inheritable} {
			data = binary.LittleEndian.AppendUint32(data, uint32(set>>shift))
		}
	}
	b.Call(unix.SYS_CAPSET, header, data)
}
