// Package machine says what a checkpoint needs of the machine that runs it:
// programs have looked at the processor and the kernel when they started, and
// go on with what they saw.
package machine

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sandtree/sandtree/internal/fault"
)

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

// Options of [Machine.Check].
type Options struct {
	// OtherKernel allows another kernel release with the same VDSO.
	OtherKernel bool
}

// Check reports whether have can run what needs m. The error has the kind
// Unsupported and names each difference.
func (m Machine) Check(have Machine, o Options) error {
	var all []string
	differ := func(format string, a ...any) { all = append(all, fmt.Sprintf(format, a...)) }
	if m.Arch != have.Arch {
		differ("it is for %s, this is %s", m.Arch, have.Arch)
	}
	hint := ""
	switch {
	case m.VDSO != have.VDSO:
		differ("it is of kernel %s, whose vDSO is another than that of this one, %s", m.Kernel, have.Kernel)
	case m.Kernel != have.Kernel && !o.OtherKernel:
		differ("it is of kernel %s, this is %s", m.Kernel, have.Kernel)
		hint = "what programs have of the kernel in their memory is the same on both: sandtree serve --other-kernel takes it"
	}
	if missing := without(m.Features, have.Features); len(missing) > 0 {
		differ("this processor lacks %s", strings.Join(missing, ", "))
	}
	switch {
	case m.Components != have.Components:
		differ("its threads have the state components %s, this machine's %s", components(m.Components), components(have.Components))
	case m.StateSize != have.StateSize || !slices.Equal(m.State, have.State):
		differ("the state of its threads is laid out in %d bytes in another way than in this machine's %d", m.StateSize, have.StateSize)
	}
	if len(all) == 0 {
		return nil
	}
	if len(all) > 1 {
		hint = ""
	}
	err := fault.New(fault.Unsupported, "it was taken on another kind of machine: %s", strings.Join(all, "; "))
	if hint != "" {
		err = err.WithHint("%s", hint)
	}
	return err
}

// without lists what b lacks of a.
func without(a, b []string) (out []string) {
	for _, f := range a {
		if !slices.Contains(b, f) {
			out = append(out, f)
		}
	}
	return out
}

// names of state components, by number (Intel SDM, volume 1, 13.1).
var names = [...]string{"x87", "SSE", "AVX", "MPX bounds", "MPX status", "AVX-512 masks", "AVX-512 upper halves", "AVX-512 registers", "PT", "PKRU", "PASID",
	"shadow stack", "shadow stack (kernel)", "HDC", "UINTR", "LBR", "HWP", "AMX configuration", "AMX data", "APX"}

func components(mask uint64) string {
	var out []string
	for i := range 64 {
		if mask>>i&1 == 0 {
			continue
		}
		if i < len(names) {
			out = append(out, names[i])
		} else {
			out = append(out, fmt.Sprint(i))
		}
	}
	return "(" + strings.Join(out, ", ") + ")"
}
