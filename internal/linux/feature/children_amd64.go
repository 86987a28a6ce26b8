package feature

const elfMachine = 62 // EM_X86_64

var (
	// xor edi,edi; mov eax,231 (exit_group); syscall
	exitCode = []byte{0x31, 0xff, 0xb8, 0xe7, 0, 0, 0, 0x0f, 0x05}
	// mov eax,34 (pause); syscall; jmp back
	pauseCode = []byte{0xb8, 0x22, 0, 0, 0, 0x0f, 0x05, 0xeb, 0xf7}
)
