package statdev

import (
	"github.com/cilium/ebpf/asm"
)

// call is a system call whose result is rewritten.
type call struct {
	function string // of the kernel's, which takes a struct pt_regs
	buffer   int16  // where in pt_regs the address of the caller's structure is
	statx    bool   // a struct statx, not a struct stat
}

const (
	// rangeBits is how many bits of a user id tell users of one range apart.
	rangeBits = 16

	statDevice  = 0   // st_dev in struct stat: 64 bits, as encoded by makedev(3)
	statxDevice = 136 // stx_dev_major and stx_dev_minor in struct statx, 32 bits each

	// Where a struct key and what is read and written stand on the program's
	// stack.
	stackKey   = -8
	stackValue = -16
)

// instructions are the program behind a call. Its context is an array of the
// function's argument and result (fexit, Linux 5.5).
//
// It leaves as early as it can: most calls are of users without a sandbox.
func (c call) instructions() asm.Instructions {
	const (
		context = asm.R6
		user    = asm.R7
		buffer  = asm.R8
		device  = asm.R9
	)
	is := asm.Instructions{
		asm.Mov.Reg(context, asm.R1),
		asm.LoadMem(asm.R0, context, 8, asm.DWord), // the result
		asm.JNE.Imm(asm.R0, 0, "out"),
		asm.FnGetCurrentUidGid.Call(),
		asm.Mov.Reg32(user, asm.R0), // the lower half: the real user id, as the host has it
		asm.RSh.Imm(user, rangeBits),
		asm.JEq.Imm(user, 0, "out"),
		asm.LoadMem(buffer, context, 0, asm.DWord), // pt_regs
		asm.LoadMem(buffer, buffer, c.buffer, asm.DWord),
		asm.Add.Imm(buffer, c.device()),
		asm.Mov.Reg(asm.R1, asm.RFP),
		asm.Add.Imm(asm.R1, stackValue),
		asm.Mov.Imm(asm.R2, 8),
		asm.Mov.Reg(asm.R3, buffer),
		asm.FnProbeReadUser.Call(),
		asm.JNE.Imm(asm.R0, 0, "out"),
	}
	// What has a major number is a real device, and keeps it. What is shown
	// already is not looked up.
	if c.statx {
		is = append(is,
			asm.LoadMem(device, asm.RFP, stackValue, asm.Word),
			asm.JNE.Imm(device, 0, "out"),
			asm.LoadMem(device, asm.RFP, stackValue+4, asm.Word))
	} else {
		// Minor numbers have bits 0–7 and 20–31, major numbers 8–19
		// (new_encode_dev in include/linux/kdev_t.h).
		is = append(is,
			asm.LoadMem(device, asm.RFP, stackValue, asm.DWord),
			asm.Mov.Reg(asm.R1, device),
			asm.And.Imm(asm.R1, 0xfff00),
			asm.JNE.Imm(asm.R1, 0, "out"),
			asm.Mov.Reg(asm.R1, device),
			asm.And.Imm(device, 0xff),
			asm.RSh.Imm(asm.R1, 12),
			asm.And.Imm(asm.R1, 0xfff00),
			asm.Or.Reg(device, asm.R1))
	}
	is = append(is,
		asm.JGE.Imm(device, firstShown, "out"),
		asm.StoreMem(asm.RFP, stackKey, device, asm.Word),
		asm.StoreMem(asm.RFP, stackKey+4, user, asm.Word),
		asm.LoadMapPtr(asm.R1, 0).WithReference(tableName),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, stackKey),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.LoadMem(device, asm.R0, 0, asm.Word),
	)
	if c.statx {
		is = append(is, asm.LSh.Imm(device, 32)) // the major number stays 0
	} else {
		is = append(is,
			asm.Mov.Reg(asm.R1, device),
			asm.And.Imm(asm.R1, 0xff),
			asm.And.Imm(device, 0xfff00),
			asm.LSh.Imm(device, 12),
			asm.Or.Reg(device, asm.R1))
	}
	return append(is,
		asm.StoreMem(asm.RFP, stackValue, device, asm.DWord),
		asm.Mov.Reg(asm.R1, buffer),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, stackValue),
		asm.Mov.Imm(asm.R3, 8),
		asm.FnProbeWriteUser.Call(),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("out"),
		asm.Return())
}

// device is where in the caller's structure the device is.
func (c call) device() int32 {
	if c.statx {
		return statxDevice
	}
	return statDevice
}
