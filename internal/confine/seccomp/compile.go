package seccomp

import (
	"encoding/binary"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"golang.org/x/sys/unix"
)

// Offsets in struct seccomp_data, which is little-endian on our machines.
const (
	offNR   = 0
	offArch = 4
	offArgs = 16
)

// maxProgram is BPF_MAXINSNS.
const maxProgram = 4096

// Compile makes the filter program.
func (p Policy) Compile() ([]unix.SockFilter, error) {
	tree, err := p.tree(p.leaves())
	if err != nil {
		return nil, err
	}
	prog := []unix.SockFilter{
		load(offArch),
		jump(unix.BPF_JEQ, p.Arch, 1, 0),
		ret(p.Foreign),
		load(offNR),
	}
	prog = append(prog, tree...)
	if len(prog) > maxProgram {
		return nil, fmt.Errorf("seccomp filter of %d instructions: at most %d are possible", len(prog), maxProgram)
	}
	return prog, nil
}

// Bytes is a program as struct sock_filter lies in memory.
func Bytes(prog []unix.SockFilter) []byte {
	b := make([]byte, 0, 8*len(prog))
	for _, f := range prog {
		b = binary.LittleEndian.AppendUint16(b, f.Code)
		b = append(b, f.Jt, f.Jf)
		b = binary.LittleEndian.AppendUint32(b, f.K)
	}
	return b
}

// Program is what [Bytes] made: struct sock_filter as it lies in memory.
func Program(b []byte) []unix.SockFilter {
	prog := make([]unix.SockFilter, 0, len(b)/8)
	for ; len(b) >= 8; b = b[8:] {
		prog = append(prog, unix.SockFilter{
			Code: binary.LittleEndian.Uint16(b), Jt: b[2], Jf: b[3], K: binary.LittleEndian.Uint32(b[4:]),
		})
	}
	return prog
}

// leaf is a range of call numbers that are treated alike, from first up to
// the next leaf's.
type leaf struct {
	first uint32
	call  Call
}

// leaves cuts all call numbers into ranges.
func (p Policy) leaves() []leaf {
	var ls []leaf
	add := func(first uint32, c Call) {
		// Rules that never matter are left out so that ranges can merge.
		for len(c.Rules) > 0 && c.Rules[len(c.Rules)-1].Action == c.Else {
			c.Rules = c.Rules[:len(c.Rules)-1]
		}
		if n := len(ls); n > 0 {
			last := ls[n-1].call
			if last.Else == c.Else && len(last.Rules) == len(c.Rules) && (len(c.Rules) == 0 || reflect.DeepEqual(last.Rules, c.Rules)) {
				return
			}
		}
		ls = append(ls, leaf{first, c})
	}
	next := 0 // the first number that has no leaf yet
	gap := func(to int) {
		if next < to && next <= p.Known {
			add(uint32(next), Call{Else: p.Default})
		}
		if past := max(next, p.Known+1); past < to {
			add(uint32(past), Call{Else: p.Newer})
		}
	}
	for _, nr := range slices.Sorted(maps.Keys(p.Calls)) {
		gap(nr)
		add(uint32(nr), p.Calls[nr])
		next = nr + 1
	}
	gap(1 << 32)
	return ls
}

// tree compiles leaves; the call number is in the accumulator.
func (p Policy) tree(ls []leaf) ([]unix.SockFilter, error) {
	if len(ls) == 1 {
		return body(ls[0].call)
	}
	mid := len(ls) / 2
	low, err := p.tree(ls[:mid])
	if err != nil {
		return nil, err
	}
	high, err := p.tree(ls[mid:])
	if err != nil {
		return nil, err
	}
	var prog []unix.SockFilter
	if len(low) <= 255 {
		prog = append(prog, jump(unix.BPF_JGE, ls[mid].first, uint8(len(low)), 0))
	} else {
		prog = append(prog, jump(unix.BPF_JGE, ls[mid].first, 0, 1), always(len(low)))
	}
	return append(append(prog, low...), high...), nil
}

// body compiles the treatment of one call. Each rule is a run of conditions,
// of which the first that fails leads to the next rule.
func body(c Call) ([]unix.SockFilter, error) {
	var prog []unix.SockFilter
	for _, r := range c.Rules {
		rule, err := compileRule(r)
		if err != nil {
			return nil, err
		}
		prog = append(prog, rule...)
	}
	return append(prog, ret(c.Else)), nil
}

// miss is a jump offset that stands for "the rule does not apply" until the
// rule's length is known.
const miss = 255

func compileRule(r Rule) ([]unix.SockFilter, error) {
	var prog []unix.SockFilter
	for _, a := range r.Args {
		if a.Index < 0 || a.Index > 5 {
			return nil, fmt.Errorf("seccomp rule on argument %d: there are six", a.Index)
		}
		prog = append(prog, condition(a)...)
	}
	prog = append(prog, ret(r.Action))
	if len(prog) >= miss {
		return nil, fmt.Errorf("seccomp rule of %d instructions: at most %d are possible", len(prog), miss-1)
	}
	for i := range prog {
		end := uint8(len(prog) - i - 1)
		if prog[i].Code&7 == unix.BPF_JMP {
			if prog[i].Jt == miss {
				prog[i].Jt = end
			}
			if prog[i].Jf == miss {
				prog[i].Jf = end
			}
		}
	}
	return prog, nil
}

// condition compiles one comparison of 64 bits in two halves: it goes on with
// the next instruction where it holds, and jumps to miss where not.
func condition(a Arg) []unix.SockFilter {
	hi, lo := uint32(a.Value>>32), uint32(a.Value)
	mhi, mlo := uint32(a.Mask>>32), uint32(a.Mask)
	loadHi, loadLo := load(offArgs+8*uint32(a.Index)+4), load(offArgs+8*uint32(a.Index))
	switch a.Op {
	case Equal:
		high := masked(loadHi, mhi, jump(unix.BPF_JEQ, hi, 0, miss))
		return append(high, masked(loadLo, mlo, jump(unix.BPF_JEQ, lo, 0, miss))...)
	case Differs:
		low := masked(loadLo, mlo, jump(unix.BPF_JEQ, lo, miss, 0))
		return append(masked(loadHi, mhi, jump(unix.BPF_JEQ, hi, 0, uint8(len(low)))), low...)
	case Less:
		return []unix.SockFilter{
			loadHi,
			jump(unix.BPF_JGT, hi, miss, 0),
			jump(unix.BPF_JEQ, hi, 0, 2), // less: holds
			loadLo,
			jump(unix.BPF_JGE, lo, miss, 0),
		}
	default:
		return []unix.SockFilter{
			loadHi,
			jump(unix.BPF_JGT, hi, 3, 0), // greater: holds
			jump(unix.BPF_JEQ, hi, 0, miss),
			loadLo,
			jump(unix.BPF_JGT, lo, 0, miss),
		}
	}
}

// masked is a load, its mask and a jump. A half that is masked away is not
// loaded: its jump could only compare zero with zero, or never hold.
func masked(load unix.SockFilter, mask uint32, j unix.SockFilter) []unix.SockFilter {
	switch {
	case mask == 0 && j.K == 0 && j.Jt == 0:
		return nil
	case mask == 1<<32-1:
		return []unix.SockFilter{load, j}
	}
	return []unix.SockFilter{load, {Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: mask}, j}
}

func load(off uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: off}
}

func ret(a Action) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: uint32(a)}
}

func jump(op uint16, k uint32, jt, jf uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | op | unix.BPF_K, Jt: jt, Jf: jf, K: k}
}

func always(n int) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA, K: uint32(n)}
}
