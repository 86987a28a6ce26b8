package memory

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

// Runs stay apart where something else is mapped between them, or where they are far
// from each other.
func TestGroups(t *testing.T) {
	vma := func(start, end uint64, kind image.VMAKind, shared bool) image.VMA {
		return image.VMA{Start: start << 12, End: end << 12, Kind: kind, Shared: shared, Prot: unix.PROT_READ | unix.PROT_WRITE}
	}
	vmas := []image.VMA{
		vma(1, 2, image.FileBacked, false),
		vma(2, 3, image.Anonymous, false),
		vma(5, 6, image.FileBacked, false), // behind a hole
		vma(6, 7, image.SharedAnonymous, true),
		vma(7, 8, image.Anonymous, false),
		vma(8, 9, image.FileBacked, false),
		vma(1<<20, 1<<20+1, image.Anonymous, false), // far away
	}
	none := vma(10, 11, image.Anonymous, false)
	none.Prot = 0
	vmas = slices.Insert(vmas, 6, none)
	var got [][]uint64
	for _, g := range groups(runs(vmas), vmas) {
		var starts []uint64
		for _, a := range g {
			starts = append(starts, a.start>>12)
		}
		got = append(got, starts)
	}
	want := [][]uint64{{1, 2, 5}, {7, 8}, {1 << 20}}
	if !slices.EqualFunc(got, want, slices.Equal[[]uint64]) {
		t.Errorf("groups begin at pages %v, want %v", got, want)
	}
}
