package pool

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"testing"
)

// sink is an image in memory.
type sink []byte

func (s sink) WriteAt(b []byte, at int64) (int, error) { return copy(s[at:], b), nil }

// TestEmptyImage looks at the embedded file system: its parameters, and that
// each copy of the superblock is right after it got a new id.
func TestEmptyImage(t *testing.T) {
	img, other := make(sink, emptySize), make(sink, emptySize)
	for _, s := range []sink{img, other} {
		if err := writeEmpty(s); err != nil {
			t.Fatal(err)
		}
	}
	const first, second = 64 << 10, 64 << 20 // the copies of the superblock
	var id []byte
	for _, at := range []int{first, second} {
		super := img[at : at+superSize]
		if !isSuper(super, uint64(at)) {
			t.Fatalf("no superblock at %d", at)
		}
		if sum := crc32.Checksum(super[32:], crc32.MakeTable(crc32.Castagnoli)); binary.LittleEndian.Uint32(super) != sum {
			t.Errorf("the superblock at %d has a wrong checksum", at)
		}
		for name, f := range map[string]struct {
			at   int
			want uint32
		}{"sectorsize": {144, 4096}, "nodesize": {148, 4096}} {
			if got := binary.LittleEndian.Uint32(super[f.at:]); got != f.want {
				t.Errorf("%s is %d, want %d", name, got, f.want)
			}
		}
		if total := binary.LittleEndian.Uint64(super[112:]); total != emptySize {
			t.Errorf("a file system of %d bytes, want %d", total, emptySize)
		}
		fsid := super[superFSID : superFSID+16]
		if bytes.Equal(fsid, super[superMetadataUUID:superMetadataUUID+16]) || bytes.Equal(fsid, other[at+superFSID:at+superFSID+16]) {
			t.Error("the id is not new")
		}
		if id != nil && !bytes.Equal(id, fsid) {
			t.Error("the copies have different ids")
		}
		id = fsid
	}
}
