// Package machine says what a checkpoint needs of the machine that runs it:
// programs have looked at the processor and the kernel when they started, and
// go on with what they saw.
package machine

// Machine is what programs see of a machine. What a checkpoint needs is the
// machine that it was taken on.
type Machine struct {
	Arch   string // GOARCH
	Kernel string // release, as uname -r
	// VDSO is the SHA-256, in hex, of the names and places of the functions
	// that the kernel maps into every program (vdso(7)). The C library keeps
	// their addresses.
	VDSO string
	// Features are what the processor can do for programs, by the names of
	// /proc/cpuinfo, sorted, without those that concern the kernel alone.
	Features []string
	// Components are the state components that are switched on (XCR0), and
	// State is the layout of their save area: its size, and the offset of
	// each component from number 2 on, as CPUID leaf 0xD gives them.
	Components uint64
	StateSize  uint32
	State      []Component
}

// Component is a part of a thread's extended state.
type Component struct{ Number, Offset, Size uint32 }

// Here describes this machine.
func Here() (Machine, error) { return Machine{}, nil }

// Options of [Machine.Check].
type Options struct {
	// OtherKernel allows another kernel release with the same VDSO.
	OtherKernel bool
}

// Check reports whether have can run what needs m. The error has the kind
// Unsupported and names each difference.
func (m Machine) Check(have Machine, o Options) error { return nil }
