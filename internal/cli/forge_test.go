package cli_test

import (
	"bytes"
	"crypto/sha256"
	bin "encoding/binary"
	"fmt"
	"os"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

// forge copies an export, whose records say of their machine what another one
// would: forge FROM TO feature|kernel|vdso. All checksums are right, so it is
// well-formed; docs/format.md has the layout.
func forge(ts *testscript.TestScript, _ bool, args []string) {
	if len(args) != 3 {
		ts.Fatalf("usage: forge FROM TO feature|kernel|vdso")
	}
	var u unix.Utsname
	ts.Check(unix.Uname(&u))
	kernel := unix.ByteSliceToString(u.Release[:])
	out, changed := []byte(nil), 0
	in := []byte(ts.ReadFile(args[0]))
	const head = 8 + 4 // magic, version
	out, in = append(out, in[:head]...), in[head:]
	for len(in) > 5 {
		kind, n := in[0], bin.BigEndian.Uint32(in[1:])
		frame := bytes.Clone(in[:5+n])
		in = in[5+n:]
		switch kind {
		case 'r':
			record := frame[5:]
			ts.Check(forgeRecord(record, args[2], kernel))
			changed++
		case 'e':
			sum := sha256.Sum256(append(bytes.Clone(out), frame[:len(frame)-sha256.Size]...))
			copy(frame[len(frame)-sha256.Size:], sum[:])
		}
		out = append(out, frame...)
	}
	if changed == 0 {
		ts.Fatalf("no record in %s", args[0])
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), out, 0o600))
}

// forgeRecord changes a record in place, without changing any length.
func forgeRecord(record []byte, what, kernel string) error {
	body := record[:len(record)-sha256.Size]
	replace := func(old, with string) error {
		if len(old) != len(with) || bytes.Count(body, []byte(old)) == 0 {
			return fmt.Errorf("%q is not in the record", old)
		}
		copy(body, bytes.ReplaceAll(body, []byte(old), []byte(with)))
		return nil
	}
	var err error
	switch what {
	case "feature":
		err = replace("\x64sse2", "\x64sse9") // as CBOR has the text
	case "kernel":
		err = replace(kernel, strings.Repeat("9", len(kernel)))
	case "vdso":
		i := bytes.Index(body, []byte("dVDSO"))
		if i < 0 {
			return fmt.Errorf("no vDSO in the record")
		}
		at := i + len("dVDSO") + 4 // behind the head of the text
		body[at] ^= 1
	}
	sum := sha256.Sum256(body)
	copy(record[len(body):], sum[:])
	return err
}
