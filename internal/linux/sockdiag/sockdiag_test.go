package sockdiag

import (
	"encoding/binary"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

func TestUnix(t *testing.T) {
	sp, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(sp[0])
	defer unix.Close(sp[1])
	if _, err := unix.Write(sp[0], []byte("unread")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Shutdown(sp[0], unix.SHUT_WR); err != nil {
		t.Fatal(err)
	}
	ino := func(fd int) uint32 {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			t.Fatal(err)
		}
		return uint32(st.Ino)
	}
	c, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	all, err := c.Unix()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(u Unix) bool { return u.Inode == ino(sp[1]) })
	if i < 0 {
		t.Fatal("the socket is not listed")
	}
	if u := all[i]; !u.HasPeer || u.Peer != ino(sp[0]) || u.Unread != 6 || u.Shutdown != 1 || u.Type != unix.SOCK_STREAM || u.State != 1 {
		t.Errorf("%+v", u)
	}
}

func FuzzMessages(f *testing.F) {
	body := append(make([]byte, unixDiagSize), 8, 0, unixDiagPeer, 0, 1, 2, 3, 4, 5, 0, unixDiagName, 0, 'x')
	m := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	m = binary.NativeEndian.AppendUint16(m, unix.SOCK_DIAG_BY_FAMILY)
	m = append(m, make([]byte, 10)...)
	f.Add(append(m, body...))
	f.Add([]byte{16, 0, 0, 0, unix.NLMSG_DONE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{1})
	f.Fuzz(func(_ *testing.T, b []byte) {
		_, _ = messages(b, func(body []byte) error {
			_, err := parseUnix(body)
			return err
		})
	})
}
