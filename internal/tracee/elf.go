package tracee

import "encoding/binary"

const (
	elfHeaderSize  = 64
	programHdrSize = 56
	segments       = 3
	codeOffset     = elfHeaderSize + segments*programHdrSize
)

// stubAt is the address of a label in a stub that was started from its file.
func stubAt(label uint64) uint64 { return codeAddr + codeOffset + label }

// stubELF is the stub as a static program of two segments: headers with code,
// and an empty data area (elf(5)).
func stubELF() []byte {
	le := binary.LittleEndian
	size := uint64(codeOffset + len(stubCode))
	b := make([]byte, codeOffset, size)
	copy(b, "\x7fELF\x02\x01\x01") // 64 bits, little endian, version 1
	le.PutUint16(b[16:], 2)        // ET_EXEC
	le.PutUint16(b[18:], 62)       // EM_X86_64
	le.PutUint32(b[20:], 1)
	le.PutUint64(b[24:], stubAt(stubStart))
	le.PutUint64(b[32:], elfHeaderSize) // program headers follow
	le.PutUint16(b[52:], elfHeaderSize)
	le.PutUint16(b[54:], programHdrSize)
	le.PutUint16(b[56:], segments)
	header := func(i int, typ, flags uint32, addr, fileSize, memSize uint64) {
		p := b[elfHeaderSize+i*programHdrSize:]
		le.PutUint32(p, typ)
		le.PutUint32(p[4:], flags)
		le.PutUint64(p[16:], addr)
		le.PutUint64(p[24:], addr)
		le.PutUint64(p[32:], fileSize)
		le.PutUint64(p[40:], memSize)
		le.PutUint64(p[48:], 4096)
	}
	const load, gnuStack = 1, 0x6474e551
	const r, w, x = 4, 2, 1
	header(0, load, r|x, codeAddr, size, size)
	header(1, load, r|w, dataStart, 0, areaEnd-dataStart)
	header(2, gnuStack, r|w, 0, 0, 0)
	return append(b, stubCode...)
}
