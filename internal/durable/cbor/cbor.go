// Package cbor writes and reads Go values in the deterministic encoding of
// CBOR (RFC 8949, section 4.2.1): one value has one encoding.
//
// # What it takes
//
//	bool, integers       as such, in the shortest form
//	float64              always in 64 bits; NaN is refused
//	string               text, or a byte string if it is not UTF-8
//	[]byte, [n]byte      byte string
//	slices, arrays       array
//	maps                 map, with keys of strings or integers, sorted by their encoding
//	structs              map from the fields' names to their values, sorted so
//	pointers             what they point to; nil is null
//	time.Time            array of seconds and nanoseconds since 1970, in UTC
//	*os.File             what [Files] makes of it, an unsigned number
//
// Fields that have the zero value are left out, and a field that is there with
// it is refused. A field may have another name by a tag, `cbor:"name"`. Fields
// named "_" and those with the tag "-" are left out; other unexported fields are
// refused, since they would be lost in silence. A field of type int and name FD
// is a descriptor, and none if it is negative.
//
// So new fields of a type need no work here: what was written before them is
// read, and what has them is refused by programs that do not know them, with an
// [UnknownFieldError], since what it means is not known.
//
// # Hostile input
//
// [Unmarshal] takes nothing but what [Marshal] would have written for some
// value: lengths are checked against what is there, depth and memory are
// bounded.
package cbor

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"time"
)

// Files says what becomes of files in a value.
type Files struct {
	// Put is called by [Marshal] for each open descriptor, and returns the
	// number that stands for it.
	Put func(fd int) (uint64, error)
	// Get is called by [Unmarshal] for each such number, and returns a
	// descriptor that belongs to the value from then on.
	Get func(n uint64) (fd int, err error)
}

// ErrMalformed is in the chain of errors about input that [Marshal] would never
// have written.
var ErrMalformed = errors.New("malformed CBOR")

// ErrLimit is in the chain of errors about values that are too deep or large.
var ErrLimit = errors.New("CBOR value too large")

// UnknownFieldError says that a struct in the input has a field which the type
// has not.
type UnknownFieldError struct {
	Type  string
	Field string
}

func (e *UnknownFieldError) Error() string {
	return fmt.Sprintf("%s has a field %.64q, which this version does not know", e.Type, e.Field)
}

const (
	maxDepth = 48
	// A byte of input makes at most memoryPerByte bytes in memory, beside
	// memoryBase.
	memoryBase    = 64 << 20
	memoryPerByte = 64
)

// Marshal encodes a value. Files in it are refused.
func Marshal(v any) ([]byte, error) { return MarshalFiles(v, Files{}) }

// MarshalFiles encodes a value with files in it.
func MarshalFiles(v any, files Files) ([]byte, error) {
	e := encoder{files: files}
	if err := e.value(reflect.ValueOf(v), 0); err != nil {
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	return e.out, nil
}

// Unmarshal decodes what [Marshal] made into what the pointer points to.
func Unmarshal(data []byte, into any) error { return UnmarshalFiles(data, into, Files{}) }

// UnmarshalFiles decodes a value with files in it. After an error the value is
// zero, and the files that were had for it are closed.
func UnmarshalFiles(data []byte, into any, files Files) error {
	v := reflect.ValueOf(into)
	if v.Kind() != reflect.Pointer || v.IsNil() {
		return fmt.Errorf("decode into %T: not a pointer", into)
	}
	d := decoder{in: data, files: files, budget: memoryBase + memoryPerByte*len(data)}
	v.Elem().SetZero()
	err := d.value(v.Elem(), 0)
	if err == nil && len(d.in) > 0 {
		err = fmt.Errorf("%w: %d bytes behind the value", ErrMalformed, len(d.in))
	}
	if err != nil {
		for _, closeIt := range d.opened {
			_ = closeIt()
		}
		v.Elem().SetZero()
		return fmt.Errorf("decode %s: %w", v.Type().Elem(), err)
	}
	return nil
}

// Major types of CBOR, in the upper three bits of a first byte.
const (
	majorUint   = 0 << 5
	majorNint   = 1 << 5
	majorBytes  = 2 << 5
	majorText   = 3 << 5
	majorArray  = 4 << 5
	majorMap    = 5 << 5
	majorSimple = 7 << 5

	simpleFalse = majorSimple | 20
	simpleTrue  = majorSimple | 21
	simpleNull  = majorSimple | 22
	float64Head = majorSimple | 27
)

var (
	fileType = reflect.TypeFor[*os.File]()
	timeType = reflect.TypeFor[time.Time]()
)
