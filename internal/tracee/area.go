package tracee

// Where things are in the memory of every stub. stub.S knows codeAddr and the
// addresses from serveAddr on.
const (
	codeAddr  = 0x2000_0000_0000 // ELF header and code, read and execute
	dataStart = 0x2000_0001_0000 // what follows is read and write
	opsAddr   = 0x2000_0001_0000
	childAddr = 0x2000_0009_0000
	dataAddr  = 0x2000_000d_0000
	dataEnd   = 0x2000_0020_0000
	serveAddr = 0x2000_0020_1000
	quietAddr = 0x2000_0020_10c0
	areaEnd   = 0x2000_0020_2000
)

// Descriptors of a stub. Programs that a stub starts see neither.
const (
	// ControlFD is the number of a stub's control socket.
	ControlFD = 100
	signalFD  = 101
	// FirstFreeFD is above every descriptor of a stub itself.
	FirstFreeFD = 102
)

// StubStart and StubEnd bound the addresses that a stub occupies. A program
// that maps something there cannot be captured.
const (
	StubStart uint64 = codeAddr
	StubEnd   uint64 = areaEnd
)

// MaxOperations is how many operations the batch of a stub holds.
const MaxOperations = (childAddr - opsAddr) / opSize

// Area says where the parts of a batch go in the target's memory.
type Area struct {
	Ops, OpsEnd     uint64 // operations of the caller
	Child, ChildEnd uint64 // operations of forked children
	Data, DataEnd   uint64 // strings, structures, results
}

// stubArea is the area of every stub.
var stubArea = Area{
	Ops: opsAddr, OpsEnd: childAddr,
	Child: childAddr, ChildEnd: dataAddr,
	Data: dataAddr, DataEnd: dataEnd,
}
