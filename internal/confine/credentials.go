package confine

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/tracee"
)

// User is who a command runs as, in the numbers inside.
type User struct {
	UID, GID uint32
	// Groups are the supplementary groups; none means GID alone.
	Groups []uint32
}

func (u User) become(b *tracee.Batch) {
	groups := u.Groups
	if len(groups) == 0 {
		groups = []uint32{u.GID}
	}
	setgroups(b, groups)
	b.Call(unix.SYS_SETRESGID, u.GID, u.GID, u.GID)
	b.Call(unix.SYS_SETRESUID, u.UID, u.UID, u.UID)
}

func setgroups(b *tracee.Batch, groups []uint32) {
	var p []byte
	for _, g := range groups {
		p = binary.LittleEndian.AppendUint32(p, g)
	}
	b.Call(unix.SYS_SETGROUPS, len(groups), append(p, 0, 0, 0, 0))
}

// IDs are the four user or group ids of a process (credentials(7)).
type IDs struct {
	Real, Effective, Saved, FS uint32
}

// Credentials are those of a captured thread, in the numbers inside.
type Credentials struct {
	UID, GID                          IDs
	Groups                            []uint32
	Effective, Permitted, Inheritable Capabilities
	Ambient, Bounding                 Capabilities
	SecureBits                        uint32
	NoNewPrivs                        bool
}

// Check refuses credentials that these walls would not hold: a checkpoint
// that was tampered with, or was made under another policy.
func (c Credentials) Check(w *Walls) error {
	bound := w.policy.Capabilities
	for _, s := range []struct {
		name string
		set  Capabilities
	}{{"permitted", c.Permitted}, {"inheritable", c.Inheritable}, {"bounding", c.Bounding}} {
		if over := s.set &^ bound; over != 0 {
			return fault.New(fault.Invalid, "%s capabilities of the process exceed the sandbox's: %s", s.name, over)
		}
	}
	if c.Effective&^c.Permitted != 0 || c.Ambient&^(c.Permitted&c.Inheritable) != 0 {
		return fault.New(fault.Invalid, "capabilities of the process contradict each other")
	}
	if !w.policy.Setuid && !c.NoNewPrivs {
		return fault.New(fault.Invalid, "the process can gain privileges and the template forbids it")
	}
	for _, id := range []uint32{c.UID.Real, c.UID.Effective, c.UID.Saved, c.UID.FS, c.GID.Real, c.GID.Effective, c.GID.Saved, c.GID.FS} {
		if id >= MappedIDs {
			return fault.New(fault.Invalid, "user or group id %d of the process is not one of the sandbox's", id)
		}
	}
	return nil
}

// Assume queues credentials in a process that is whole root in its
// namespaces, behind [Walls.Enclose], keeping the capabilities keep until
// [Credentials.Settle]. Children inherit what is dropped here: clone them
// before.
func (w *Walls) Assume(b *tracee.Batch, c Credentials, keep Capabilities) {
	for n := range w.lastCap + 1 { // what the process itself has dropped
		if w.policy.Capabilities.Has(n) && !c.Bounding.Has(n) {
			b.Call(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, n, 0, 0, 0)
		}
	}
	setgroups(b, c.Groups)
	b.Call(unix.SYS_SETRESGID, c.GID.Real, c.GID.Effective, c.GID.Saved)
	b.Call(unix.SYS_SETFSGID, c.GID.FS)
	// Capabilities would go with uid 0.
	b.Call(unix.SYS_PRCTL, unix.PR_SET_KEEPCAPS, 1, 0, 0, 0)
	b.Call(unix.SYS_SETRESUID, c.UID.Real, c.UID.Effective, c.UID.Saved)
	// Effective ones go even so; setfsuid and the rest needs some back.
	need := keep | 1<<unix.CAP_SETUID | 1<<unix.CAP_SETPCAP
	capset(b, c.Effective|need, c.Permitted|need, c.Inheritable)
	b.Call(unix.SYS_SETFSUID, c.UID.FS)
	if c.NoNewPrivs {
		b.Call(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	}
}

// Settle queues the last step in each thread, after the last call that needs
// a kept capability.
func (c Credentials) Settle(b *tracee.Batch) {
	for n := range 64 {
		if c.Ambient.Has(n) {
			b.Call(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, n, 0, 0)
		}
	}
	// PR_SET_KEEPCAPS is one of the secure bits; this takes it back.
	b.Call(unix.SYS_PRCTL, unix.PR_SET_SECUREBITS, c.SecureBits, 0, 0, 0)
	capset(b, c.Effective, c.Permitted, c.Inheritable)
}

// MappedIDs is how many user and group ids a sandbox has, from 0 up.
const MappedIDs = 1 << 16

// firstHostID is below the host ids of the first family. Distributions give
// out 100000 to 0x1fffffff to users and containers (systemd uses up to
// 0x6fffffff for dynamic ones; see its UIDS-GIDS).
const firstHostID = 0x20000000

// IDMap is the range of host ids that a family's sandboxes have.
type IDMap struct {
	// Host is the host's number of id 0 inside.
	Host uint32
}

// FamilyIDs is the range of family number n.
func FamilyIDs(n int) (IDMap, error) {
	if n < 0 || n >= (1<<31-firstHostID)/MappedIDs {
		return IDMap{}, fault.New(fault.Exhausted, "family number %d has no user ids left for it", n)
	}
	return IDMap{Host: firstHostID + uint32(n)*MappedIDs}, nil
}

// String is the text for /proc/PID/uid_map and gid_map (user_namespaces(7)).
func (m IDMap) String() string { return fmt.Sprintf("0 %d %d\n", m.Host, MappedIDs) }

// Inside is the number inside of a host id.
func (m IDMap) Inside(host uint32) (uint32, bool) {
	if host < m.Host || host-m.Host >= MappedIDs {
		return 0, false
	}
	return host - m.Host, true
}

// Outside is the host's number of an id inside.
func (m IDMap) Outside(inside uint32) (uint32, bool) {
	if inside >= MappedIDs {
		return 0, false
	}
	return m.Host + inside, true
}
