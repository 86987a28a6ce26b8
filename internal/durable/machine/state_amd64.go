package machine

// cpuid runs the CPUID instruction.
func cpuid(leaf, sub uint32) (a, b, c, d uint32)

// xgetbv reads XCR0. The processor must have XSAVE switched on.
func xgetbv() (lo, hi uint32)

// state reads how extended state is saved: CPUID leaf 0xD (Intel SDM, volume 1,
// chapter 13).
func state() (components uint64, size uint32, layout []Component) {
	const (
		leafFeatures, leafState = 1, 0xD
		osxsave                 = 1 << 27
	)
	if _, _, c, _ := cpuid(leafFeatures, 0); c&osxsave == 0 {
		return 0, 512, nil // FXSAVE
	}
	lo, hi := xgetbv()
	components = uint64(hi)<<32 | uint64(lo)
	_, size, _, _ = cpuid(leafState, 0)
	for i := uint32(2); i < 63; i++ {
		if components>>i&1 == 1 {
			s, offset, _, _ := cpuid(leafState, i)
			layout = append(layout, Component{i, offset, s})
		}
	}
	return components, size, layout
}
