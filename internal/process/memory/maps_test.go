package memory

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

func TestParseMaps(t *testing.T) {
	const text = "00400000-00401000 r-xp 00000000 08:01 12345                              /usr/bin/some program\n" +
		"5581a0000000-5581a0021000 rw-p 00000000 00:00 0                          [heap]\n" +
		"7f0000000000-7f0000001000 ---p 00000000 00:00 0 \n" +
		"7f0000002000-7f0000003000 rw-s 00001000 00:01 77                         /dev/zero (deleted)\n" +
		"7f0000003000-7f0000004000 r--p 00002000 08:01 9                          /lib/a\\012b (deleted)\n" +
		"7f0000004000-7f0000005000 rw-p 00000000 00:00 0                          [anon: malloc]\n" +
		"7f0000005000-7f0000006000 r--p 00000000 08:01 9                          /lib/  \n" +
		"7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]\n" +
		"7ffc00030000-7ffc00032000 r-xp 00000000 00:00 0                          [vdso]\n" +
		"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]\n"
	got, err := ParseMaps([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	want := []image.VMA{
		{Start: 0x400000, End: 0x401000, Prot: unix.PROT_READ | unix.PROT_EXEC, Kind: image.FileBacked, Path: "/usr/bin/some program", Dev: unix.Mkdev(8, 1), Ino: 12345},
		{Start: 0x5581a0000000, End: 0x5581a0021000, Prot: unix.PROT_READ | unix.PROT_WRITE, Name: "[heap]"},
		{Start: 0x7f0000000000, End: 0x7f0000001000},
		{Start: 0x7f0000002000, End: 0x7f0000003000, Prot: unix.PROT_READ | unix.PROT_WRITE, Shared: true, Kind: image.SharedAnonymous, Offset: 0x1000, Path: "/dev/zero", Deleted: true, Dev: unix.Mkdev(0, 1), Ino: 77},
		{Start: 0x7f0000003000, End: 0x7f0000004000, Prot: unix.PROT_READ, Kind: image.FileBacked, Offset: 0x2000, Path: "/lib/a\nb", Deleted: true, Dev: unix.Mkdev(8, 1), Ino: 9},
		{Start: 0x7f0000004000, End: 0x7f0000005000, Prot: unix.PROT_READ | unix.PROT_WRITE},
		{Start: 0x7f0000005000, End: 0x7f0000006000, Prot: unix.PROT_READ, Kind: image.FileBacked, Path: "/lib/  ", Dev: unix.Mkdev(8, 1), Ino: 9},
		{Start: 0x7ffc00000000, End: 0x7ffc00021000, Prot: unix.PROT_READ | unix.PROT_WRITE, Kind: image.Stack, Name: "[stack]"},
		{Start: 0x7ffc00030000, End: 0x7ffc00032000, Prot: unix.PROT_READ | unix.PROT_EXEC, Kind: image.VDSO, Name: "[vdso]"},
	}
	if len(got) != len(want) {
		t.Fatalf("%d mappings, want %d", len(got), len(want))
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("mapping %d:\n got %+v\nwant %+v", i, got[i], want[i])
		}
	}
	for i := range got {
		if f := Find(got, got[i].Start); f != &got[i] {
			t.Errorf("Find(%#x) = %v", got[i].Start, f)
		}
	}
	if Find(got, 0x401000) != nil || Find(got, 0) != nil {
		t.Error("Find found a mapping where none is")
	}
}

func FuzzParseMaps(f *testing.F) {
	own, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(own)
	f.Add([]byte("0-1000 rw-p 0 0:0 0\n"))
	f.Add([]byte("0-"))
	f.Fuzz(func(t *testing.T, text []byte) {
		vmas, err := ParseMaps(text)
		if err != nil {
			return
		}
		for i := range vmas {
			if vmas[i].Start >= vmas[i].End || i > 0 && vmas[i-1].End > vmas[i].Start {
				t.Errorf("mappings %+v out of order", vmas)
			}
		}
	})
}
