package seccomp

import (
	"fmt"

	moby "github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// base is moby's default profile for a bounding set of capabilities, given by
// name ("CAP_CHOWN"). Names that this architecture does not have are skipped:
// the profile is one for all.
func base(capabilities []string) (Policy, error) {
	spec := &specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: capabilities}}}
	profile, err := moby.GetDefaultProfile(spec)
	if err != nil {
		return Policy{}, fmt.Errorf("evaluate the default seccomp profile: %w", err)
	}
	def, err := action(profile.DefaultAction, profile.DefaultErrnoRet)
	if err != nil {
		return Policy{}, err
	}
	p := Policy{
		Arch:    AuditArch,
		Foreign: Kill,
		Calls:   map[int]Call{},
		Default: def,
		// The C library tries new calls first and falls back when told that
		// they do not exist; EPERM would be taken for an answer.
		Newer: Errno(unix.ENOSYS),
	}
	for _, s := range profile.Syscalls {
		if err := p.add(s); err != nil {
			return Policy{}, err
		}
	}
	for _, s := range moby.DefaultProfile().Syscalls {
		for _, name := range s.Names {
			p.Known = max(p.Known, numbers[name])
		}
	}
	return p, nil
}

// add adds an entry of an OCI profile. Entries for one call are alternatives.
func (p *Policy) add(s specs.LinuxSyscall) error {
	act, err := action(s.Action, s.ErrnoRet)
	if err != nil {
		return err
	}
	rule := Rule{Action: act}
	for _, a := range s.Args {
		arg, err := argument(a)
		if err != nil {
			return fmt.Errorf("%v: %w", s.Names, err)
		}
		rule.Args = append(rule.Args, arg)
	}
	for _, name := range s.Names {
		nr, ok := numbers[name]
		if !ok {
			continue
		}
		c, ok := p.Calls[nr]
		if !ok {
			c.Else = p.Default
		}
		if len(rule.Args) == 0 {
			c.Else = act
		} else {
			c.Rules = append(c.Rules, rule)
		}
		p.Calls[nr] = c
	}
	return nil
}

func action(a specs.LinuxSeccompAction, errno *uint) (Action, error) {
	switch a {
	case specs.ActAllow:
		return Allow, nil
	case specs.ActErrno:
		if errno == nil {
			return Errno(unix.EPERM), nil
		}
		return Errno(unix.Errno(*errno)), nil
	}
	return 0, fmt.Errorf("seccomp profile has action %s, which is not expected", a)
}

func argument(a specs.LinuxSeccompArg) (Arg, error) {
	arg := Arg{Index: int(a.Index), Value: a.Value, Mask: ^uint64(0)}
	switch a.Op {
	case specs.OpEqualTo:
		arg.Op = Equal
	case specs.OpNotEqual:
		arg.Op = Differs
	case specs.OpLessThan:
		arg.Op = Less
	case specs.OpGreaterThan:
		arg.Op = Greater
	case specs.OpMaskedEqual:
		arg.Op, arg.Mask, arg.Value = Equal, a.Value, a.ValueTwo
	default:
		return Arg{}, fmt.Errorf("seccomp profile compares by %s, which is not expected", a.Op)
	}
	return arg, nil
}
