package memory

// syscallInstruction is what enters the kernel.
var syscallInstruction = []byte{0x0f, 0x05}
