package cbor_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/sandtree/sandtree/internal/durable/cbor"
	"github.com/sandtree/sandtree/internal/process/image"
)

// every has a field of each kind that has an encoding.
type every struct {
	B     bool
	I     int
	I8    int8
	U64   uint64
	U16   uint16
	F     float64
	S     string
	Bytes []byte
	Array [4]byte
	Words [3]uint32
	List  []inner
	Ptrs  []*inner
	Ptr   *inner
	Map   map[string]int32
	Num   map[int]string
	In    inner
	T     time.Time
	Tag   int `cbor:"other"`
	Left  int `cbor:"-"`
	_     int
}

type inner struct {
	X int
	S string
	P *inner
}

func TestVectors(t *testing.T) {
	for _, c := range []struct {
		v    any
		want string
	}{
		// RFC 8949, appendix A
		{0, "00"},
		{23, "17"},
		{24, "1818"},
		{100, "1864"},
		{1000, "1903e8"},
		{1000000, "1a000f4240"},
		{uint64(math.MaxUint64), "1bffffffffffffffff"},
		{-1, "20"},
		{-1000, "3903e7"},
		{int64(math.MinInt64), "3b7fffffffffffffff"},
		{true, "f5"},
		{[]byte{1, 2, 3, 4}, "4401020304"},
		{"IETF", "6449455446"},
		{"ü", "62c3bc"},
		{"\xff", "41ff"},
		{[]int{1, 2, 3}, "83010203"},
		{map[int]int{1: 2, 3: 4}, "a201020304"},
		{map[string]string{"aa": "C", "b": "c"}, "a26162616362616161" + "43"},
		{1.1, "fb3ff199999999999a"},
		{inner{X: 1}, "a1615801"},
		{[]*inner{nil, {}}, "82f6a0"},
		{time.Unix(1, 5), "820105"},
	} {
		b, err := cbor.Marshal(c.v)
		if err != nil || hex.EncodeToString(b) != c.want {
			t.Errorf("%#v: %x, %v; want %s", c.v, b, err, c.want)
		}
	}
}

// draw makes a random value.
func draw(t *rapid.T) every {
	var in func(depth int) *inner
	in = func(depth int) *inner {
		if depth == 0 || rapid.Bool().Draw(t, "nil") {
			return nil
		}
		return &inner{rapid.Int().Draw(t, "x"), string(rapid.SliceOf(rapid.Byte()).Draw(t, "s")), in(depth - 1)}
	}
	v := every{
		B: rapid.Bool().Draw(t, "b"), I: rapid.Int().Draw(t, "i"), I8: rapid.Int8().Draw(t, "i8"),
		U64: rapid.Uint64().Draw(t, "u64"), U16: rapid.Uint16().Draw(t, "u16"), F: rapid.Float64().Draw(t, "f"),
		S: rapid.String().Draw(t, "s"), Ptr: in(3), Tag: rapid.Int().Draw(t, "tag"),
	}
	if rapid.Bool().Draw(t, "some") {
		v.Bytes = rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")
		copy(v.Array[:], v.Bytes)
		v.Map = rapid.MapOf(rapid.String(), rapid.Int32()).Draw(t, "map")
		v.Num = rapid.MapOf(rapid.Int(), rapid.String()).Draw(t, "num")
		v.Ptrs = []*inner{in(2), in(1), in(3)}
		v.List = []inner{{X: 3}, {}}
		v.Words[1] = rapid.Uint32().Draw(t, "word")
		v.T = time.Unix(rapid.Int64Range(-1<<40, 1<<40).Draw(t, "sec"), rapid.Int64Range(0, 999_999_999).Draw(t, "ns")).UTC()
	}
	return v
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := draw(t)
		b, err := cbor.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		var got every
		if err := cbor.Unmarshal(b, &got); err != nil {
			t.Fatalf("%x: %v", b, err)
		}
		if !reflect.DeepEqual(got, v) {
			t.Fatalf("%+v became %+v", v, got)
		}
	})
}

func TestFiles(t *testing.T) {
	type holder struct {
		F    *os.File
		None *os.File
		Many []*image.Shared
	}
	a, err := os.CreateTemp(t.TempDir(), "a")
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	var fds []int
	b, err := cbor.MarshalFiles(holder{F: a, Many: []*image.Shared{{FD: int(a.Fd()), Size: 3}, {FD: -1}}}, cbor.Files{
		Put: func(fd int) (uint64, error) {
			fds = append(fds, fd)
			return uint64(len(fds) - 1), nil
		},
	})
	if err != nil || len(fds) != 2 || fds[0] != int(a.Fd()) || fds[1] != int(a.Fd()) {
		t.Fatalf("%v, %v", fds, err)
	}
	var got holder
	err = cbor.UnmarshalFiles(b, &got, cbor.Files{Get: func(n uint64) (int, error) { return unix.Dup(fds[n]) }})
	if err != nil {
		t.Fatal(err)
	}
	if got.F == nil || got.None != nil || len(got.Many) != 2 || got.Many[0].FD < 0 || got.Many[1].FD != -1 {
		t.Errorf("%+v", got)
	}
	got.F.Close()
	got.Many[0].Close()
	if err := cbor.Unmarshal(b, &got); err == nil {
		t.Error("files came from nowhere")
	}
	if _, err := cbor.Marshal(holder{F: a}); err == nil {
		t.Error("a file was kept nowhere")
	}
}

// TestImageHasEncoding fails when somebody gives the image of processes a
// field that would be lost.
func TestImageHasEncoding(t *testing.T) {
	tree := &image.Tree{
		Processes: []*image.Process{{PID: 2, Threads: []*image.Thread{{TID: 2, XState: []byte{1}}}, Memory: image.Memory{VMAs: []image.VMA{{Start: 1}}}}},
		Files:     []*image.File{{Kind: image.Regular, Watches: []image.Watch{{Number: 1}}}},
		Shared:    []*image.Shared{{FD: -1}},
		Terminals: []*image.Terminal{{Number: 1}},
	}
	b, err := cbor.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	var got *image.Tree
	if err := cbor.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(tree, got) {
		t.Errorf("%+v became %+v", tree, got)
	}
}

func TestRefused(t *testing.T) {
	type hidden struct{ x int }
	type sideways struct{ In image.Shared }
	type twice struct {
		A int
		B int `cbor:"A"`
	}
	for _, v := range []any{hidden{1}, sideways{}, twice{}, func() {}, make(chan int), math.NaN(), map[float64]int{1: 1}, float32(1)} {
		if b, err := cbor.Marshal(v); err == nil {
			t.Errorf("%T became %x", v, b)
		}
	}
	for _, c := range []struct {
		what, in string
		into     any
	}{
		{"nothing", "", new(int)},
		{"more", "0000", new(int)},
		{"not shortest", "1817", new(int)},
		{"not shortest 2", "1900ff", new(int)},
		{"overflow", "1903e8", new(int8)},
		{"negative", "20", new(uint)},
		{"below int64", "3bffffffffffffffff", new(int64)},
		{"indefinite", "9f00ff", new([]int)},
		{"long", "9a7fffffff", new([]int)},
		{"longer", "9bffffffffffffffff", new([]int)},
		{"long bytes", "5bffffffffffffffff", new([]byte)},
		{"wrong order", "a203040102", new(map[int]int)},
		{"same key", "a201020102", new(map[int]int)},
		{"bad text", "61ff", new(string)},
		{"text as bytes", "4161", new(string)},
		{"unknown", "a1617101", new(inner)},
		{"zero field", "a1615800", new(inner)},
		{"fields out of order", "a2615801615300", new(inner)},
		{"tag", "c000", new(int)},
		{"undefined", "f7", new(bool)},
		{"half float", "f93c00", new(float64)},
		{"simple as float", "f4", new(float64)},
		{"NaN", "fb7ff8000000000000", new(float64)},
		{"array of another length", "820102", new([3]int)},
		{"ns", "82011a3b9aca00", new(time.Time)},
		{"not a pointer", "00", 5},
		{"deep", strings.Repeat("81", 100) + "80", new(nested)},
		{"memory", "9a00080000" + strings.Repeat("a0", 1<<19), new([]image.Process)},
	} {
		in, err := hex.DecodeString(c.in)
		if err != nil {
			t.Fatal(err)
		}
		if err := cbor.Unmarshal(in, c.into); err == nil {
			t.Errorf("%s: taken", c.what)
		}
	}
	var unknown *cbor.UnknownFieldError
	if err := cbor.Unmarshal([]byte("\xa1\x61q\x01"), new(inner)); !errors.As(err, &unknown) || unknown.Field != "q" {
		t.Errorf("%v", err)
	}
	if err := cbor.Unmarshal(nil, new(int)); !errors.Is(err, cbor.ErrMalformed) || errors.Is(err, io.EOF) {
		t.Errorf("%v", err)
	}
}

type nested []nested

// FuzzUnmarshal: what is taken is what would be written.
func FuzzUnmarshal(f *testing.F) {
	for _, v := range []any{
		every{}, every{I: -5, S: "a\xff", Bytes: []byte{}, Ptrs: []*inner{nil, {X: 1}}, Map: map[string]int32{"a": 1, "bb": 2}, T: time.Unix(5, 5), F: 0.5, Ptr: &inner{}},
	} {
		b, err := cbor.Marshal(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		var v every
		if err := cbor.Unmarshal(in, &v); err != nil {
			return
		}
		out, err := cbor.Marshal(v)
		if err != nil || !bytes.Equal(in, out) {
			t.Errorf("%x became %x, %v", in, out, err)
		}
	})
}

func ExampleMarshal() {
	b, _ := cbor.Marshal(struct {
		Name string
		N    int
	}{"a", 5})
	fmt.Printf("%x\n", b)
	// Output: a2614e05644e616d656161
}
