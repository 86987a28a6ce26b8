// Package confine makes a process a confined one.
//
// # Mechanism
//
// Everything is done by the process itself, in batches of system calls that
// its supervisor queues (package tracee); this package knows which and in
// which order. Boot, exec and restore use the same calls, so a restored
// process stands behind the same walls as a booted one; [Compare] checks it.
//
// From outside in:
//
//   - Host side, once per stub: [Prepare] sets resource limits, which a
//     process in a user namespace can only lower, and offers the sandbox's
//     processes to the OOM killer before ours.
//   - Namespaces and [IDMap]: root inside is nobody outside.
//   - PID 1, once per incarnation: [Keyring], [Walls.Mask], [Undumpable]. It
//     keeps the capabilities of its own user namespace and has no filter: no
//     code of the sandbox runs in it.
//   - exec: [Walls.Exec] is all that comes between the clone and the execve.
//   - restore: [Walls.Enclose] in the root of the tree, whose children
//     inherit it, then [Walls.Assume] in each process and
//     [Credentials.Settle] in each thread as the last.
//
// # Order
//
// A filter can be installed by a process with no_new_privs, or with
// CAP_SYS_ADMIN in its user namespace. With no_new_privs it goes in last and
// sees execve alone. Where a template wants setuid programs, no_new_privs
// stays off, and Landlock and filter go in before capabilities are dropped;
// the calls after it are ones that the filter allows. capset and the bounding
// set come in both orders before untrusted code.
//
// # Dumpable
//
// A process that shares memory with a stub, or is only half restored, must
// not be opened by root inside through /proc/PID/mem: it would write into
// the stub. So stubs and everything that they clone are not dumpable until
// the last confinement step: execve resets it by itself, and restore calls
// [Dumpable] at the very end.
//
// # Capabilities
//
// The bounding set is [DefaultCapabilities]: Docker's without MKNOD, which a
// user namespace refuses for all but the whiteouts that need none, and
// without AUDIT_WRITE, which works in the initial user namespace alone.
//
// # What is left to the host
//
// The root of a sandbox must be mounted nodev; cgroup limits, devices and
// freezing are package cgroup's. A crash inside may be piped to the host's
// core_pattern program, which is a matter of the host's settings: by default
// RLIMIT_CORE is 1, for which the kernel pipes nothing.
package confine

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/confine/seccomp"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/tracee"
)

// Policy is what a template decides about its walls. The zero value is the
// default.
type Policy struct {
	// Setuid lets setuid programs and file capabilities raise privilege
	// inside, up to the bounding set.
	Setuid bool
	// Capabilities is the bounding set; zero means [DefaultCapabilities].
	Capabilities Capabilities
	// Landlock further restricts files; nil means not.
	Landlock *Landlock
}

// Walls are a policy made ready for this kernel: its filter compiled, its
// paths looked up. They may be used by many goroutines.
type Walls struct {
	policy  Policy
	lastCap int    // the highest capability of this kernel
	filter  []byte // struct sock_filter
	masks   masks
}

// New makes walls. It takes a millisecond; make them once per family.
func New(p Policy) (*Walls, error) {
	if p.Capabilities == 0 {
		p.Capabilities = DefaultCapabilities
	}
	last, err := lastCapability()
	if err != nil {
		return nil, err
	}
	if over := p.Capabilities &^ (1<<(last+1) - 1); over != 0 {
		return nil, fault.New(fault.Unsupported, "this kernel does not have %s", over)
	}
	policy, err := seccomp.Sandbox(p.Capabilities.Names())
	if err != nil {
		return nil, fault.New(fault.Internal, "make the seccomp filter: %w", err)
	}
	prog, err := policy.Compile()
	if err != nil {
		return nil, fault.New(fault.Internal, "make the seccomp filter: %w", err)
	}
	if p.Landlock != nil {
		if err := p.Landlock.check(); err != nil {
			return nil, err
		}
	}
	return &Walls{policy: p, lastCap: last, filter: seccomp.Bytes(prog), masks: findMasks()}, nil
}

// Policy is the policy that the walls were made of, with its defaults filled
// in.
func (w *Walls) Policy() Policy { return w.policy }

func lastCapability() (int, error) {
	b, err := os.ReadFile("/proc/sys/kernel/cap_last_cap")
	if err == nil {
		var n int
		if n, err = strconv.Atoi(strings.TrimSpace(string(b))); err == nil && (n < 0 || n > 63) {
			err = fmt.Errorf("capability %d", n)
		}
		if err == nil {
			return n, nil
		}
	}
	return 0, fault.New(fault.Internal, "find the kernel's capabilities: %w", err)
}

// Exec queues the way from a child of PID 1, whole root in its namespaces, to
// a confined process of user u. An execve comes next and nothing else: the
// batch is at the mercy of the filter from here on. About 50 calls.
func (w *Walls) Exec(b *tracee.Batch, u User) {
	w.bound(b)
	if w.policy.Setuid {
		w.seal(b)
	}
	u.become(b)
	var caps Capabilities
	if u.UID == 0 {
		caps = w.policy.Capabilities
	}
	capset(b, caps, caps, 0)
	if !w.policy.Setuid {
		b.Call(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		w.seal(b)
	}
}

// Enclose queues the walls of a process that is being restored, and that is
// whole root in its namespaces: all of [Walls.Exec] but the credentials,
// which are the process's own. The filter would meet the calls that follow,
// so the process must be traced with PTRACE_O_SUSPEND_SECCOMP.
func (w *Walls) Enclose(b *tracee.Batch) {
	w.bound(b)
	if !w.policy.Setuid {
		b.Call(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	}
	w.seal(b)
}

// bound empties the ambient set and cuts the bounding set.
func (w *Walls) bound(b *tracee.Batch) {
	for n := range w.lastCap + 1 {
		if !w.policy.Capabilities.Has(n) {
			b.Call(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, n, 0, 0, 0)
		}
	}
	b.Call(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
}

// seal installs what needs no_new_privs or CAP_SYS_ADMIN.
func (w *Walls) seal(b *tracee.Batch) {
	if w.policy.Landlock != nil {
		w.policy.Landlock.queue(b)
	}
	// struct sock_fprog {u16 len; pad; pointer}
	program := b.PutWords(uint64(len(w.filter)/8), uint64(b.Put(w.filter)))
	b.Call(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, program)
}

// Keyring queues a session keyring of the process's own: it would share that
// of the supervisor otherwise.
func Keyring(b *tracee.Batch) {
	b.Call(unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, nil)
}

// Undumpable queues that nobody may open the process's memory or trace it,
// save with CAP_SYS_PTRACE on the host.
func Undumpable(b *tracee.Batch) { b.Call(unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 0, 0, 0, 0) }

// Dumpable queues the end of [Undumpable], as the very last step of a
// restored process that was dumpable.
func Dumpable(b *tracee.Batch) { b.Call(unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 1, 0, 0, 0) }
