package memory

import "testing"

// What is made warm goes as far as is asked for and the limit allows, over several chunks, and is what
// is allocated next.
func TestWarm(t *testing.T) {
	a, err := NewArena()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	const want = 2*chunkSize + 5*pageSize
	if _, err := a.Alloc(chunkSize / 2); err != nil {
		t.Fatal(err)
	}
	if err := a.Warm(want); err != nil {
		t.Fatal(err)
	}
	for got := 0; got < want; {
		b, err := a.Alloc(want - got)
		if err != nil {
			t.Fatal(err)
		}
		if n := resident(t, b); n != len(b)/pageSize {
			t.Errorf("of the %d bytes from %d on %d pages are there", len(b), got, n)
		}
		got += len(b)
	}
	a.Reset()
	a.Limit(2 * chunkSize)
	if err := a.Warm(10 * chunkSize); err != nil {
		t.Fatal(err)
	}
	if len(a.chunks)+len(a.ready) != 2 {
		t.Errorf("%d chunks are there, of which a limit allows two", len(a.chunks)+len(a.ready))
	}
	if _, err := a.Alloc(chunkSize); err != nil {
		t.Error(err)
	}
	if _, err := a.Alloc(chunkSize); err != nil {
		t.Error(err)
	}
	if b, err := a.Alloc(pageSize); err == nil {
		t.Errorf("%d bytes beyond the limit", len(b))
	}
}

// resident counts pages that are in memory (mincore(2)).
func resident(t *testing.T, b []byte) (n int) {
	pages := make([]byte, (len(b)+pageSize-1)/pageSize)
	if err := mincore(b, pages); err != nil {
		t.Fatal(err)
	}
	for _, p := range pages {
		n += int(p & 1)
	}
	return n
}
