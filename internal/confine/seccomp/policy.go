// Package seccomp decides which system calls a sandboxed process may make and
// turns that decision into a filter program for seccomp(2).
//
// The decision is data: a [Policy] gives, for each call, rules over its
// arguments. [Sandbox] makes ours from moby's default profile. [Policy.Decide]
// evaluates a policy as it is written; [Policy.Compile] makes a classic BPF
// program that decides the same: a balanced tree over ranges of call numbers
// with the argument checks at its leaves, so that a call costs about eight
// comparisons where a list costs hundreds. Since 5.11 the kernel skips the
// program for calls that it always allows, which a tree does not hinder.
//
// The kernel cuts most arguments down to 32 bits. A rule that refuses
// something therefore compares the low half alone: a caller could hide it
// behind a bit in the high one.
package seccomp

//go:generate ./generate.sh

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Action is what the kernel does with a call: a SECCOMP_RET_* value.
type Action uint32

// Allow lets a call through; Kill ends the process with SIGSYS.
const (
	Allow Action = unix.SECCOMP_RET_ALLOW
	Kill  Action = unix.SECCOMP_RET_KILL_PROCESS
)

// Errno makes a call fail with an error number.
func Errno(e unix.Errno) Action { return unix.SECCOMP_RET_ERRNO | Action(e)&unix.SECCOMP_RET_DATA }

func (a Action) String() string {
	switch {
	case a == Allow:
		return "allow"
	case a == Kill:
		return "kill"
	case a&unix.SECCOMP_RET_ACTION_FULL == unix.SECCOMP_RET_ERRNO:
		return unix.ErrnoName(unix.Errno(a & unix.SECCOMP_RET_DATA))
	}
	return fmt.Sprintf("%#x", uint32(a))
}

// Op compares an argument.
type Op uint8

// The comparisons, all of unsigned 64-bit numbers.
const (
	Equal   Op = iota // argument & Mask == Value
	Differs           // argument & Mask != Value
	Less              // argument < Value
	Greater           // argument > Value
)

// Arg is a condition on one argument.
type Arg struct {
	Index int // 0 to 5
	Op    Op
	Value uint64
	Mask  uint64 // of Equal and Differs
}

// Is is the condition that the whole argument is value.
func Is(index int, value uint64) Arg {
	return Arg{Index: index, Op: Equal, Value: value, Mask: ^uint64(0)}
}

// Low is the condition that the low half of an argument is value.
func Low(index int, value uint32) Arg {
	return Arg{Index: index, Op: Equal, Value: uint64(value), Mask: 1<<32 - 1}
}

// holds evaluates the condition.
func (a Arg) holds(args [6]uint64) bool {
	v := args[a.Index]
	switch a.Op {
	case Equal:
		return v&a.Mask == a.Value
	case Differs:
		return v&a.Mask != a.Value
	case Less:
		return v < a.Value
	default:
		return v > a.Value
	}
}

// Rule applies its action where all its conditions hold.
type Rule struct {
	Args   []Arg
	Action Action
}

// Call is the treatment of one system call: the first rule that applies, or
// Else.
type Call struct {
	Rules []Rule
	Else  Action
}

// Policy is the treatment of all system calls of one architecture.
type Policy struct {
	// Arch is the AUDIT_ARCH_* that the policy is for; calls made in another
	// way (int 0x80) have the action Foreign.
	Arch    uint32
	Foreign Action
	// Calls has the calls that are treated on their own, by number.
	Calls map[int]Call
	// Known is the highest call number that the policy's author knew. Calls
	// up to it that Calls does not have get Default; newer ones, and the x32
	// variant (bit 30), get Newer.
	Known          int
	Default, Newer Action
}

// Data is what a filter decides on: struct seccomp_data.
type Data struct {
	NR   uint32
	Arch uint32
	IP   uint64
	Args [6]uint64
}

// Decide evaluates the policy.
func (p Policy) Decide(d Data) Action {
	if d.Arch != p.Arch {
		return p.Foreign
	}
	if c, ok := p.Calls[int(d.NR)]; ok {
		for _, r := range c.Rules {
			if r.applies(d.Args) {
				return r.Action
			}
		}
		return c.Else
	}
	if d.NR > uint32(p.Known) {
		return p.Newer
	}
	return p.Default
}

func (r Rule) applies(args [6]uint64) bool {
	for _, a := range r.Args {
		if !a.holds(args) {
			return false
		}
	}
	return true
}
