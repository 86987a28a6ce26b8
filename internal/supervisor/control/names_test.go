package control_test

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/sandtree/sandtree/internal/supervisor/control"
)

// every byte that a name may have: all but NUL and the slash.
func everyByte() string {
	var b []byte
	for c := 1; c < 256; c++ {
		if c != '/' {
			b = append(b, byte(c))
		}
	}
	return string(b)
}

func TestNamesKeepTheirBytes(t *testing.T) {
	name := everyByte()
	request := control.FileRequest{
		Sandbox: "sb-x", Op: control.FileSymlink, Path: "/" + name, NoFollow: true, Mode: 0o4755, UID: 1, GID: 2, Target: name,
	}
	entry := control.Entry{Name: name, Mode: 0o100644, UID: 1, GID: 2, Size: 3, MTime: time.Unix(4, 5).UTC(), Target: "../" + name}
	reply := control.FileReply{Entry: entry, Entries: []control.Entry{entry, {Name: "plain"}}}

	same(t, request)
	same(t, control.FileRequest{Op: control.FileStat})
	same(t, reply)
}

// same checks that a message is the same behind a socket.
func same[T any](t *testing.T, sent T) {
	t.Helper()
	b, err := json.Marshal(sent)
	if err != nil {
		t.Fatal(err)
	}
	var got T
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(sent, got) {
		t.Errorf("sent %+v\ngot  %+v\nby   %s", sent, got, b)
	}
}
