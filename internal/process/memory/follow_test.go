package memory

import (
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/sandtree/sandtree/internal/process/image"
)

// holding is a checkpoint's zygote and what it has to hold.
type holding struct {
	z   *Zygote
	kin []*relative
}

// holdings are the last few, since each has all bytes of its processes.
type holdings []*holding

func (hs *holdings) add(h *holding) {
	const most = 4
	if *hs = append(*hs, h); len(*hs) > most {
		(*hs)[0].z.Kill()
		*hs = (*hs)[1:]
	}
}

func (hs *holdings) kill() {
	for _, h := range *hs {
		h.z.Kill()
	}
}

// holds fails the test unless a zygote holds all of it.
func (h *holding) check(t *testing.T, z *Zygote) {
	t.Helper()
	for _, r := range h.kin {
		compare(t, z, r.tr.pid, z.Windows(r.tr.pid), r.want)
	}
}

// A zygote that goes from checkpoint to checkpoint, there and back, holds each
// byte for byte, and can be brought up to date from there; an empty one, too. Its
// generation stays.
func TestZygoteFollowsAnother(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	a, err := NewArena()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	g := start(t, 5, 8)
	seed := newSeed(t)
	base, err := NewZygote(seed)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { base.Kill() }()
	var all holdings
	defer all.kill()
	var copied int64
	rnd := rand.New(rand.NewPCG(3, 4))
	for round := range 18 {
		want := g.capture(a)
		g.whole()
		if err := base.Update([]*Delta{&g.delta}, openPath); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		z, err := base.Fork()
		if err != nil {
			t.Fatal(err)
		}
		r := &relative{tr: g.tr, want: want}
		r.delta.VMAs = append([]image.VMA(nil), g.delta.VMAs...)
		all.add(&holding{z: z, kin: []*relative{r}})
		if round%3 == 2 { // elsewhere, and back to where the program stands
			for range 2 {
				h := all[rnd.IntN(len(all))]
				if _, err := base.Follow(h.z); err != nil {
					t.Fatalf("round %d: %v", round, err)
				}
				h.check(t, base)
			}
			if round == 11 {
				base.Kill()
				if base, err = NewZygote(seed); err != nil {
					t.Fatal(err)
				}
			}
			n, err := base.Follow(z)
			if err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
			copied += n
			all[len(all)-1].check(t, base)
		}
		if base.Generation() != 0 || z.Generation() != 1 {
			t.Fatalf("round %d: generations %d and %d", round, base.Generation(), z.Generation())
		}
		g.step()
	}
	for _, h := range all { // the way has changed none of them
		h.check(t, h.z)
	}
	t.Logf("%d MB copied", copied>>20)
}

// So does one of processes that share pages, with what they share.
func TestZygoteOfForkedProcessesFollowsAnother(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	a, err := NewArena()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	k := startKin(t, 11, 4)
	base, err := NewZygote(newSeed(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { base.Kill() }()
	rnd := rand.New(rand.NewPCG(5, 6))
	var all holdings
	defer all.kill()
	var lent uint64
	for round := range 12 {
		if err := base.Update(k.capture(a), openPath); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		z, err := base.Fork()
		if err != nil {
			t.Fatal(err)
		}
		h := &holding{z: z}
		for _, r := range k.all {
			c := *r
			h.kin = append(h.kin, &c)
		}
		all.add(h)
		for _, ls := range base.loans {
			for _, l := range ls {
				lent += l.end - l.start
			}
		}
		if round%2 == 1 {
			for _, to := range []*holding{all[rnd.IntN(len(all))], h} {
				if _, err := base.Follow(to.z); err != nil {
					t.Fatalf("round %d: %v", round, err)
				}
				to.check(t, base)
				r := to.kin[rnd.IntN(len(to.kin))]
				place(t, base, r, false).Kill()
			}
		}
		for _, r := range k.all {
			if !r.executed && rnd.IntN(3) > 0 {
				k.tell(r.slot, 's')
			}
		}
		switch n := rnd.IntN(10); {
		case n < 6:
			k.fork(k.all[rnd.IntN(len(k.all))])
		case n < 8 && len(k.all) > 2:
			k.end(rnd.IntN(len(k.all)))
		case n == 8:
			if r := k.all[rnd.IntN(len(k.all))]; !r.executed {
				k.tell(r.slot, 'h')
			}
		}
	}
	for _, h := range all {
		h.check(t, h.z)
	}
	if lent == 0 {
		t.Error("nothing was lent")
	}
}
