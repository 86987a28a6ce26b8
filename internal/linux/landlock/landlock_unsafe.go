// Package landlock takes a thread, and all that it starts, the right to files
// outside of certain directories (landlock(7), Linux 5.13). Descriptors that are
// open already are not concerned, but what is opened below one is.
package landlock

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Access is what is allowed below a path: a set of LANDLOCK_ACCESS_FS_*.
type Access uint64

// Sets of rights. Executing is not restricted.
const (
	Read  = Access(unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_READ_DIR)
	Write = abi1 | Access(unix.LANDLOCK_ACCESS_FS_REFER) | Access(unix.LANDLOCK_ACCESS_FS_TRUNCATE)

	abi1 = Access(unix.LANDLOCK_ACCESS_FS_MAKE_SYM<<1-1) &^ unix.LANDLOCK_ACCESS_FS_EXECUTE
	// ofFiles are the rights that a rule about a file may name.
	ofFiles = Access(unix.LANDLOCK_ACCESS_FS_READ_FILE | unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_TRUNCATE)
)

// Rule allows something below a path that exists.
type Rule struct {
	Path   string
	Access Access
}

// Restrict restricts the calling thread, which the caller has locked to its
// goroutine, for good. It needs no_new_privs or CAP_SYS_ADMIN. A kernel without
// Landlock, or one that was started without it, is an error that
// [errors.ErrUnsupported] matches.
func Restrict(rules ...Rule) error {
	abi, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return fmt.Errorf("landlock: %w", errors.Join(errors.ErrUnsupported, errno))
	}
	handled := abi1
	if abi >= 2 {
		handled |= unix.LANDLOCK_ACCESS_FS_REFER
	}
	if abi >= 3 {
		handled |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	// struct landlock_ruleset_attr, as far as ABI 1 has it.
	set, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&handled)), unsafe.Sizeof(handled), 0)
	if errno != 0 {
		return fmt.Errorf("landlock_create_ruleset: %w", errno)
	}
	defer func() { _ = unix.Close(int(set)) }()
	for _, r := range rules {
		if err := allow(set, r, handled); err != nil {
			return err
		}
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, set, 0, 0); errno != 0 {
		return fmt.Errorf("landlock_restrict_self: %w", errno)
	}
	return nil
}

func allow(set uintptr, r Rule, handled Access) error {
	fd, err := unix.Open(r.Path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: r.Path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return &os.PathError{Op: "stat", Path: r.Path, Err: err}
	}
	access := r.Access & handled
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		access &= ofFiles
	}
	// The structure is packed, so it has no type of Go's.
	var rule [12]byte
	*(*uint64)(unsafe.Pointer(&rule[0])) = uint64(access)
	*(*int32)(unsafe.Pointer(&rule[8])) = int32(fd) //nolint:gosec // a descriptor
	if _, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, set, unix.LANDLOCK_RULE_PATH_BENEATH, uintptr(unsafe.Pointer(&rule)), 0, 0, 0); errno != 0 {
		return fmt.Errorf("landlock_add_rule for %s: %w", r.Path, errno)
	}
	return nil
}
