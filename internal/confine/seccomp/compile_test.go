package seccomp

import (
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

var docker = []string{"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FSETID", "CAP_FOWNER", "CAP_NET_RAW", "CAP_SETGID",
	"CAP_SETUID", "CAP_SETFCAP", "CAP_SETPCAP", "CAP_NET_BIND_SERVICE", "CAP_SYS_CHROOT", "CAP_KILL"}

func sandbox(t testing.TB) (Policy, []unix.SockFilter) {
	t.Helper()
	p, err := Sandbox(docker)
	if err != nil {
		t.Fatal(err)
	}
	prog, err := p.Compile()
	if err != nil {
		t.Fatal(err)
	}
	return p, prog
}

// values that a policy compares an argument with, and their neighbours.
func values(p Policy) []uint64 {
	seen := map[uint64]bool{0: true, 1: true, ^uint64(0): true}
	for _, c := range p.Calls {
		for _, r := range c.Rules {
			for _, a := range r.Args {
				for _, v := range []uint64{a.Value, a.Value - 1, a.Value + 1, a.Value | 1<<32, a.Value | 1<<63, a.Value<<32 | a.Value, a.Mask, ^a.Mask} {
					seen[v] = true
				}
			}
		}
	}
	var vs []uint64
	for v := range seen {
		vs = append(vs, v)
	}
	return vs
}

// Every call, on every architecture, with interesting and random arguments.
func TestProgramDecidesAsThePolicy(t *testing.T) {
	p, prog := sandbox(t)
	vs := values(p)
	rnd := rand.New(rand.NewPCG(1, 2))
	try := func(d Data) {
		got, err := Run(prog, d)
		if err != nil {
			t.Fatalf("%+v: %v", d, err)
		}
		if want := p.Decide(d); got != want {
			t.Fatalf("%+v: program %v, policy %v", d, got, want)
		}
	}
	for nr := range uint32(1200) {
		for _, nr := range []uint32{nr, nr | 1<<30, nr | 1<<31, ^nr} {
			try(Data{NR: nr, Arch: p.Arch})
			try(Data{NR: nr, Arch: unix.AUDIT_ARCH_I386})
			try(Data{NR: nr, Arch: rnd.Uint32()})
			for range 50 {
				d := Data{NR: nr, Arch: p.Arch, IP: rnd.Uint64()}
				for i := range d.Args {
					if rnd.IntN(4) == 0 {
						d.Args[i] = rnd.Uint64()
					} else {
						d.Args[i] = vs[rnd.IntN(len(vs))]
					}
				}
				try(d)
			}
		}
	}
	// Calls with rules get every value in every argument that they look at.
	for nr, c := range p.Calls {
		for _, r := range c.Rules {
			for _, a := range r.Args {
				for _, v := range vs {
					d := Data{NR: uint32(nr), Arch: p.Arch}
					d.Args[a.Index] = v
					try(d)
					for _, other := range r.Args { // and with the rule's others fulfilled
						if other.Index != a.Index {
							d.Args[other.Index] = other.Value
						}
					}
					try(d)
				}
			}
		}
	}
}

// Any policy, not only ours.
func TestAnyPolicyCompiles(t *testing.T) {
	small := rapid.Uint64Range(0, 3)
	word := rapid.Custom(func(t *rapid.T) uint64 {
		return small.Draw(t, "high")<<32 | small.Draw(t, "low")
	})
	arg := rapid.Custom(func(t *rapid.T) Arg {
		return Arg{
			Index: rapid.IntRange(0, 5).Draw(t, "index"),
			Op:    Op(rapid.IntRange(0, 3).Draw(t, "op")),
			Value: word.Draw(t, "value"),
			Mask:  rapid.OneOf(word, rapid.SampledFrom([]uint64{^uint64(0), 1<<32 - 1, 0xffffffff00000000})).Draw(t, "mask"),
		}
	})
	act := rapid.SampledFrom([]Action{Allow, Kill, Errno(1), Errno(38)})
	rule := rapid.Custom(func(t *rapid.T) Rule {
		return Rule{Args: rapid.SliceOfN(arg, 0, 4).Draw(t, "args"), Action: act.Draw(t, "action")}
	})
	rapid.Check(t, func(t *rapid.T) {
		p := Policy{
			Arch: unix.AUDIT_ARCH_X86_64, Foreign: Kill, Default: Errno(1), Newer: Errno(38),
			Known: rapid.IntRange(0, 60).Draw(t, "known"),
			Calls: rapid.MapOfN(rapid.IntRange(0, 60), rapid.Custom(func(t *rapid.T) Call {
				return Call{Rules: rapid.SliceOfN(rule, 0, 5).Draw(t, "rules"), Else: act.Draw(t, "else")}
			}), 0, 60).Draw(t, "calls"),
		}
		prog, err := p.Compile()
		if err != nil {
			t.Fatal(err)
		}
		for range 200 {
			d := Data{NR: uint32(rapid.IntRange(0, 70).Draw(t, "nr")), Arch: p.Arch}
			for i := range d.Args {
				d.Args[i] = word.Draw(t, "arg")
			}
			got, err := Run(prog, d)
			if err != nil || got != p.Decide(d) {
				t.Fatalf("%+v: program %v (%v), policy %v", d, got, err, p.Decide(d))
			}
		}
	})
}

func TestProgramIsShallow(t *testing.T) {
	p, prog := sandbox(t)
	t.Logf("%d instructions, %d bytes, highest known call %d", len(prog), len(Bytes(prog)), p.Known)
	if len(prog) > 500 {
		t.Errorf("%d instructions", len(prog))
	}
}

func TestBadRulesAreRefused(t *testing.T) {
	p := Policy{Calls: map[int]Call{1: {Rules: []Rule{{Args: []Arg{{Index: 6}}, Action: Allow}}, Else: Kill}}}
	if _, err := p.Compile(); err == nil {
		t.Error("argument 6 was taken")
	}
	long := Rule{Action: Allow}
	for range 100 {
		long.Args = append(long.Args, Is(0, 1))
	}
	p.Calls[1] = Call{Rules: []Rule{long}, Else: Kill}
	if _, err := p.Compile(); err == nil {
		t.Error("a rule too long for its jumps was taken")
	}
}
