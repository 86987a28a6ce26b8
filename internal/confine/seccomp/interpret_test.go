package seccomp

import (
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// Programs with what our own do not need.
func TestRun(t *testing.T) {
	const k, x = unix.BPF_K, unix.BPF_X
	d := Data{NR: 219, Arch: AuditArch, IP: 1<<40 | 7, Args: [6]uint64{5, 1<<32 | 6}}
	retA := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_A}
	set := func(a, x uint32) []unix.SockFilter {
		return []unix.SockFilter{{Code: unix.BPF_LDX | unix.BPF_IMM, K: x}, {Code: unix.BPF_LD | unix.BPF_IMM, K: a}}
	}
	for name, c := range map[string]struct {
		prog []unix.SockFilter
		want uint32
	}{
		"the low half of an address":   {[]unix.SockFilter{load(8), retA}, 7},
		"the high half":                {[]unix.SockFilter{load(12), retA}, 1 << 8},
		"the high half of an argument": {[]unix.SockFilter{load(offArgs + 12), retA}, 1},
		"length":                       {[]unix.SockFilter{{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_LEN}, retA}, 64},
		"length to X":                  {[]unix.SockFilter{{Code: unix.BPF_LDX | unix.BPF_W | unix.BPF_LEN}, {Code: unix.BPF_MISC | unix.BPF_TXA}, retA}, 64},
		"memory":                       {append(set(3, 4), unix.SockFilter{Code: unix.BPF_STX, K: 15}, unix.SockFilter{Code: unix.BPF_LD | unix.BPF_MEM, K: 15}, retA), 4},
		"memory to X":                  {append(set(3, 4), unix.SockFilter{Code: unix.BPF_ST}, unix.SockFilter{Code: unix.BPF_LDX | unix.BPF_MEM}, unix.SockFilter{Code: unix.BPF_MISC | unix.BPF_TXA}, retA), 3},
		"to X and back":                {append(set(3, 4), unix.SockFilter{Code: unix.BPF_MISC | unix.BPF_TAX}, unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_ADD | x}, retA), 6},
		"add":                          {append(set(^uint32(0), 0), unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_ADD | k, K: 2}, retA), 1},
		"subtract X":                   {append(set(1, 2), unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_SUB | x}, retA), ^uint32(0)},
		"multiply":                     {append(set(7, 6), unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_MUL | x}, retA), 42},
		"divide":                       {append(set(43, 6), unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_DIV | k, K: 6}, retA), 7},
		"or, xor, and":                 {append(set(12, 10), unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_OR | x}, unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_XOR | k, K: 1}, unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | k, K: 7}, retA), 7},
		"shifts":                       {append(set(1, 31), unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_LSH | x}, unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_RSH | k, K: 30}, retA), 2},
		"negative":                     {append(set(1, 0), unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_NEG}, retA), ^uint32(0)},
		"bits that are set":            {append(set(6, 4), unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JSET | x, Jt: 0, Jf: 1}, ret(Allow), ret(Kill)), uint32(Allow)},
		"not above X":                  {append(set(4, 4), unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JGT | x, Jt: 0, Jf: 1}, ret(Allow), ret(Kill)), uint32(Kill)},
	} {
		if got, err := Run(Program(Bytes(c.prog)), d); err != nil || uint32(got) != c.want {
			t.Errorf("%s: %#x, %v; want %#x", name, uint32(got), err, c.want)
		}
	}
	for name, prog := range map[string][]unix.SockFilter{
		"no end": {load(0)}, "a jump behind the end": {always(1 << 30), ret(Allow)}, "a load behind the data": {load(64), ret(Allow)},
		"a crooked load": {load(2), ret(Allow)}, "another word of memory": {{Code: unix.BPF_ST, K: 16}, ret(Allow)},
		"by zero": {{Code: unix.BPF_ALU | unix.BPF_DIV | x}, ret(Allow)}, "a byte": {{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS}, ret(Allow)},
	} {
		if got, err := Run(prog, d); err == nil {
			t.Errorf("%s: %#x", name, uint32(got))
		}
	}
}

// No program does more than end.
func TestRunOfAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		_, _ = Run(Program(rapid.SliceOfN(rapid.Byte(), 0, 400).Draw(t, "program")), Data{NR: 1})
	})
}
