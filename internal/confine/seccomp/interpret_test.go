package seccomp

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// interpret runs a classic BPF program as the kernel's seccomp does.
func interpret(prog []unix.SockFilter, d Data) (Action, error) {
	mem := binary.LittleEndian.AppendUint32(nil, d.NR)
	mem = binary.LittleEndian.AppendUint32(mem, d.Arch)
	mem = binary.LittleEndian.AppendUint64(mem, d.IP)
	for _, a := range d.Args {
		mem = binary.LittleEndian.AppendUint64(mem, a)
	}
	var acc uint32
	for pc := 0; pc < len(prog); pc++ {
		f := prog[pc]
		branch := func(yes bool) {
			if yes {
				pc += int(f.Jt)
			} else {
				pc += int(f.Jf)
			}
		}
		switch f.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			if f.K%4 != 0 || int(f.K)+4 > len(mem) {
				return 0, fmt.Errorf("%d: load at %d", pc, f.K)
			}
			acc = binary.LittleEndian.Uint32(mem[f.K:])
		case unix.BPF_ALU | unix.BPF_AND | unix.BPF_K:
			acc &= f.K
		case unix.BPF_JMP | unix.BPF_JA:
			pc += int(f.K)
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			branch(acc == f.K)
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			branch(acc >= f.K)
		case unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K:
			branch(acc > f.K)
		case unix.BPF_RET | unix.BPF_K:
			return Action(f.K), nil
		default:
			return 0, fmt.Errorf("%d: code %#x", pc, f.Code)
		}
	}
	return 0, fmt.Errorf("ran off the end")
}
