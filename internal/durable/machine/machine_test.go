package machine_test

import (
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/sandtree/sandtree/internal/durable/machine"
	"github.com/sandtree/sandtree/internal/fault"
)

func TestHere(t *testing.T) {
	m, err := machine.Here()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", m)
	if m.Arch != runtime.GOARCH || m.Kernel == "" || len(m.VDSO) != 64 || len(m.Features) == 0 {
		t.Errorf("%+v", m)
	}
	if runtime.GOARCH == "amd64" {
		if m.Components&3 != 3 || m.StateSize < 576 || !slices.Contains(m.Features, "sse2") {
			t.Errorf("%+v", m)
		}
	}
	for _, f := range []string{"vmx", "svm", "smep", "constant_tsc", "hypervisor"} {
		if slices.Contains(m.Features, f) {
			t.Errorf("%s concerns programs", f)
		}
	}
	if err := m.Check(m, machine.Options{}); err != nil {
		t.Error(err)
	}
}

func TestCheckNamesDifferences(t *testing.T) {
	base := machine.Machine{
		Arch: "amd64", Kernel: "6.12.1", VDSO: "aa", Features: []string{"avx", "avx2", "sse2"},
		Components: 7, StateSize: 832, State: []machine.Component{{Number: 2, Offset: 576, Size: 256}},
	}
	for _, c := range []struct {
		change func(*machine.Machine)
		want   []string // nothing: can run
		o      machine.Options
	}{
		{change: func(*machine.Machine) {}},
		{change: func(m *machine.Machine) { m.Features = []string{"avx", "avx2", "avx512f", "sse2"} }},
		{change: func(m *machine.Machine) { m.Features = []string{"avx", "sse2"} }, want: []string{"avx2"}},
		{change: func(m *machine.Machine) { m.Kernel = "6.18.0" }, want: []string{"6.12.1", "6.18.0"}},
		{change: func(m *machine.Machine) { m.Kernel = "6.18.0" }, o: machine.Options{OtherKernel: true}},
		{change: func(m *machine.Machine) { m.Kernel, m.VDSO = "6.18.0", "bb" }, o: machine.Options{OtherKernel: true}, want: []string{"vDSO", "6.18.0"}},
		{change: func(m *machine.Machine) { m.Arch = "arm64" }, want: []string{"amd64", "arm64"}},
		{change: func(m *machine.Machine) { m.Components = 0x2e7 }, want: []string{"AVX-512 masks", "PKRU"}},
		{change: func(m *machine.Machine) { m.State = []machine.Component{{Number: 2, Offset: 640, Size: 256}} }, want: []string{"laid out"}},
		{change: func(m *machine.Machine) { m.StateSize = 900 }, want: []string{"832", "900"}},
	} {
		have := base
		c.change(&have)
		err := base.Check(have, c.o)
		if (err != nil) != (len(c.want) > 0) || err != nil && !fault.Is(err, fault.Unsupported) {
			t.Errorf("%+v: %v", have, err)
			continue
		}
		for _, w := range c.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%q does not name %q", err, w)
			}
		}
	}
}
