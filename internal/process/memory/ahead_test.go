package memory

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sandtree/sandtree/internal/linux/ptrace"
)

// busy is a program that writes a lot and changes its mappings all the time.
const busy = `
import threading
def work():
    print('ready', flush=True)
    k = 0
    while True:
        k += 1
        o = rnd.randrange(len(heap) // 2)
        heap[o:o + len(heap) // 2] = bytes([k & 255]) * (len(heap) // 2)
        for _ in range(4): step()
        if len(maps) > 200:
            for a in list(maps)[:100]: libc.munmap(a, maps.pop(a) * P)
work()
`

// What is copied while a program goes on writing, unmapping, moving, replacing
// and dropping memory makes, with what the stop adds, every byte as it stands in
// the stop.
func TestCopiedAheadEqualsProgram(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	a, err := NewArena()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	file := t.TempDir() + "/mapped"
	if err := os.WriteFile(file, make([]byte, 8*pageSize), 0o600); err != nil {
		t.Fatal(err)
	}
	code := strings.SplitN(program, "keep = []", 2)[0] + "keep = []\n" + busy
	g := startProgram(t, "python3", "-c", code, "9", "24", file)
	base, err := NewZygote(newSeed(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { base.Kill() }()
	var ahead, whole, rest uint64
	for round := range 25 {
		a.Reset()
		n, _, err := g.tr.CopyAhead(a, round%3 == 1)
		if err != nil {
			t.Fatal(err)
		}
		ahead += n
		if err := stop(g.tr); err != nil {
			t.Fatal(err)
		}
		g.delta = Delta{}
		if err := g.tr.Scan(&g.delta); err != nil {
			t.Fatal(err)
		}
		if err := g.tr.Copy(&g.delta, a); err != nil {
			t.Fatal(err)
		}
		if g.delta.Full && round > 0 {
			whole++
		}
		if n > 0 {
			rest += uint64(g.delta.Bytes())
		}
		want := contents(t, g.tr)
		if err := ptrace.Detach(g.cmd.Process.Pid, 0); err != nil {
			t.Fatal(err)
		}
		g.delta.Join()
		if err := base.Update([]*Delta{&g.delta}, openPath); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		g.compare(base, want)
		if round%8 == 7 { // a capture that comes to nothing
			if _, _, err := g.tr.CopyAhead(a, false); err != nil {
				t.Fatal(err)
			}
			g.tr.Forget()
		}
		time.Sleep(20 * time.Millisecond) // it writes meanwhile
	}
	t.Logf("%d MB copied ahead, %d MB left to the stops, %d of 25 captures whole", ahead>>20, rest>>20, whole)
	if ahead == 0 {
		t.Error("nothing was copied ahead")
	}
}

// A run whose parts are covered leaves the others, with their data.
func TestPartsOfRuns(t *testing.T) {
	data := make([]byte, 4*pageSize)
	for i := range data {
		data[i] = byte(i / pageSize)
	}
	r := Run{Start: 0x10000, End: 0x14000, Data: data}
	got := r.less(spans{{0x11000, 0x12000}, {0x13000, 0x20000}}, nil)
	if len(got) != 2 || got[0].Start != 0x10000 || got[0].End != 0x11000 || got[1].Start != 0x12000 || got[1].End != 0x13000 {
		t.Fatalf("parts %+v", fmt.Sprint(got))
	}
	for i, want := range []byte{0, 2} {
		if len(got[i].Data) != pageSize || got[i].Data[0] != want {
			t.Errorf("part %d has data of page %d", i, got[i].Data[0])
		}
	}
}
