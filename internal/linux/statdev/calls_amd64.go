package statdev

// Offsets in struct pt_regs (arch/x86/include/asm/ptrace.h) of the registers
// that hold the arguments of a system call.
const (
	argument2 = 104 // rsi
	argument3 = 96  // rdx
	argument5 = 72  // r8
)

// calls are the functions of the system calls that tell of a device.
var calls = []call{
	{function: "__x64_sys_newfstatat", buffer: argument3},
	{function: "__x64_sys_newstat", buffer: argument2},
	{function: "__x64_sys_newlstat", buffer: argument2},
	{function: "__x64_sys_newfstat", buffer: argument2},
	{function: "__x64_sys_statx", buffer: argument5, statx: true},
}
