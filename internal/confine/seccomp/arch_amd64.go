package seccomp

import "golang.org/x/sys/unix"

// AuditArch is what this machine's calls have in [Data].
const AuditArch = unix.AUDIT_ARCH_X86_64

// archRules are refusals that only this architecture has.
//
// Shadow stacks (6.6) and segments of modify_ldt are state that no checkpoint
// keeps. A C library that is refused a shadow stack goes on without.
func archRules(p *Policy) {
	for option := uint32(0x5001); option <= 0x5005; option++ { // ARCH_SHSTK_*
		p.refuse("arch_prctl", Errno(unix.EOPNOTSUPP), Low(0, option))
	}
	p.set("modify_ldt", Call{Else: Errno(unix.ENOSYS)})
}
