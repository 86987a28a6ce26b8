package sandbox

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/tracee"
)

const dockerCaps = 0xa80425fb

// queueConfinement drops from PID 1's rights to those of a user's process.
func queueConfinement(b *tracee.Batch, u User, setuid bool) {
	for n := 0; n <= unix.CAP_LAST_CAP; n++ {
		if dockerCaps>>n&1 == 0 {
			b.Call(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, n, 0, 0, 0)
		}
	}
	b.Call(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	var groups []byte
	for _, g := range u.Groups {
		groups = binary.LittleEndian.AppendUint32(groups, uint32(g))
	}
	b.Call(unix.SYS_SETGROUPS, len(u.Groups), groups)
	b.Call(unix.SYS_SETRESGID, u.GID, u.GID, u.GID)
	b.Call(unix.SYS_SETRESUID, u.UID, u.UID, u.UID)
	if u.UID == 0 {
		b.Call(unix.SYS_CAPSET, b.PutWords(unix.LINUX_CAPABILITY_VERSION_3), b.PutWords(dockerCaps|(dockerCaps&0xffffffff)<<32, 0, 0))
	}
	if !setuid {
		b.Call(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	}
}
