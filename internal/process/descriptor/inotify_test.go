package descriptor

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
)

func TestParseMarks(t *testing.T) {
	text := "pos:\t0\nflags:\t04000\n" +
		"inotify wd:9 ino:8000000000001cde sdev:9c mask:fff ignored_mask:0 fhandle-bytes:4 fhandle-type:f8 f_handle:00000000\n" +
		"inotify wd:1 ino:1 sdev:800013 mask:84000002 ignored_mask:0\n" +
		"inotify wd:1f ino:2 sdev:800013 mask:2 ignored_mask:0\n" + "inotify wd:20 ino:3 sdev:800013 mask:2 ignored_mask:0\n"
	got, err := parseMarks([]byte(text))
	if err != nil || len(got) != 4 {
		t.Fatalf("%+v %v", got, err)
	}
	m := got[0]
	if m.watch != (image.Mark{Number: 9, Mask: 0xfff}) || m.ino != 0x8000000000001cde || m.dev != 0x9c || m.typ != 0xf8 || !bytes.Equal(m.handle, make([]byte, 4)) {
		t.Errorf("%+v", m)
	}
	if m := got[1]; m.watch.Mask != unix.IN_ONESHOT|unix.IN_EXCL_UNLINK|unix.IN_MODIFY || m.dev != unix.Mkdev(8, 0x13) || m.handle != nil {
		t.Errorf("%+v", m)
	}
	if a, b := got[2].watch.Number, got[3].watch.Number; a != 0x1f || b != 0x20 {
		t.Errorf("watches %d and %d", a, b)
	}
	for _, bad := range []string{"inotify wd:x\n", "inotify wd:1\n", "inotify wd:1 ino:1 sdev:1 f_handle:0\n", "inotify  \n"} {
		if got, err := parseMarks([]byte(bad)); err == nil {
			t.Errorf("%q: %+v", bad, got)
		}
	}
}

func FuzzParseMarks(f *testing.F) {
	f.Add("inotify wd:9 ino:1cde sdev:9c mask:fff ignored_mask:0 fhandle-bytes:4 fhandle-type:f8 f_handle:00000000\n")
	f.Add("inotify :::\n")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := parseMarks([]byte(text))
		for _, m := range got {
			if err == nil && m.watch.Number <= 0 {
				t.Errorf("%q: %+v", text, m)
			}
		}
	})
}
