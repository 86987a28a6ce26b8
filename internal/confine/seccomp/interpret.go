package seccomp

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// Run runs a filter program as the kernel does: all of classic BPF that
// seccomp(2) takes (seccomp_check_filter in the kernel).
func Run(prog []unix.SockFilter, d Data) (Action, error) {
	r := machine{data: binary.LittleEndian.AppendUint32(nil, d.NR)}
	r.data = binary.LittleEndian.AppendUint32(r.data, d.Arch)
	r.data = binary.LittleEndian.AppendUint64(r.data, d.IP)
	for _, a := range d.Args {
		r.data = binary.LittleEndian.AppendUint64(r.data, a)
	}
	for pc := 0; pc < len(prog); pc++ { // jumps lead forward alone
		f := prog[pc]
		switch f.Code & 7 { // BPF_CLASS
		case unix.BPF_RET:
			if f.Code&0x18 == unix.BPF_A {
				return Action(r.acc), nil
			}
			return Action(f.K), nil
		case unix.BPF_JMP:
			if f.Code == unix.BPF_JMP|unix.BPF_JA {
				pc += min(int(f.K), len(prog))
				continue
			}
			yes, ok := r.compare(f)
			if !ok {
				return 0, unknown(pc, f)
			}
			if yes {
				pc += int(f.Jt)
			} else {
				pc += int(f.Jf)
			}
		default:
			if !r.step(f) {
				return 0, unknown(pc, f)
			}
		}
	}
	return 0, fmt.Errorf("a filter program without an end")
}

func unknown(pc int, f unix.SockFilter) error {
	return fmt.Errorf("instruction %d of a filter program: code %#x, operand %#x", pc, f.Code, f.K)
}

// machine is the state of a classic BPF program.
type machine struct {
	data     []byte // struct seccomp_data
	acc, reg uint32 // A and X
	memory   [unix.BPF_MEMWORDS]uint32
}

// operand is the constant, or X.
func (m *machine) operand(f unix.SockFilter) uint32 {
	if f.Code&unix.BPF_X != 0 {
		return m.reg
	}
	return f.K
}

func (m *machine) compare(f unix.SockFilter) (yes, ok bool) {
	v := m.operand(f)
	switch f.Code & 0xf0 { // BPF_OP
	case unix.BPF_JEQ:
		return m.acc == v, true
	case unix.BPF_JGT:
		return m.acc > v, true
	case unix.BPF_JGE:
		return m.acc >= v, true
	case unix.BPF_JSET:
		return m.acc&v != 0, true
	}
	return false, false
}

// step runs an instruction that does not jump; false if there is none such.
func (m *machine) step(f unix.SockFilter) bool {
	switch f.Code {
	case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
		if f.K%4 != 0 || uint64(f.K)+4 > uint64(len(m.data)) {
			return false
		}
		m.acc = binary.LittleEndian.Uint32(m.data[f.K:])
	case unix.BPF_LD | unix.BPF_W | unix.BPF_LEN:
		m.acc = uint32(len(m.data))
	case unix.BPF_LDX | unix.BPF_W | unix.BPF_LEN:
		m.reg = uint32(len(m.data))
	case unix.BPF_LD | unix.BPF_IMM:
		m.acc = f.K
	case unix.BPF_LDX | unix.BPF_IMM:
		m.reg = f.K
	case unix.BPF_MISC | unix.BPF_TAX:
		m.reg = m.acc
	case unix.BPF_MISC | unix.BPF_TXA:
		m.acc = m.reg
	case unix.BPF_LD | unix.BPF_MEM, unix.BPF_LDX | unix.BPF_MEM, unix.BPF_ST, unix.BPF_STX:
		return m.remember(f)
	default:
		return f.Code&7 == unix.BPF_ALU && m.calculate(f)
	}
	return true
}

func (m *machine) remember(f unix.SockFilter) bool {
	if f.K >= unix.BPF_MEMWORDS {
		return false
	}
	switch f.Code & 7 {
	case unix.BPF_LD:
		m.acc = m.memory[f.K]
	case unix.BPF_LDX:
		m.reg = m.memory[f.K]
	case unix.BPF_ST:
		m.memory[f.K] = m.acc
	case unix.BPF_STX:
		m.memory[f.K] = m.reg
	}
	return true
}

func (m *machine) calculate(f unix.SockFilter) bool {
	v := m.operand(f)
	switch f.Code & 0xf0 { // BPF_OP
	case unix.BPF_ADD:
		m.acc += v
	case unix.BPF_SUB:
		m.acc -= v
	case unix.BPF_MUL:
		m.acc *= v
	case unix.BPF_DIV:
		if v == 0 { // which ends the program
			return false
		}
		m.acc /= v
	case unix.BPF_AND:
		m.acc &= v
	case unix.BPF_OR:
		m.acc |= v
	case unix.BPF_XOR:
		m.acc ^= v
	case unix.BPF_LSH:
		m.acc <<= v & 31
	case unix.BPF_RSH:
		m.acc >>= v & 31
	case unix.BPF_NEG:
		m.acc = -m.acc
	default:
		return false
	}
	return true
}
