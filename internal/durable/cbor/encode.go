package cbor

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"slices"
	"time"
	"unicode/utf8"
)

type encoder struct {
	out   []byte
	files Files
}

// head writes a major type with its argument in the shortest form.
func (e *encoder) head(major byte, n uint64) {
	switch {
	case n < 24:
		e.out = append(e.out, major|byte(n))
	case n <= math.MaxUint8:
		e.out = append(e.out, major|24, byte(n))
	case n <= math.MaxUint16:
		e.out = binary.BigEndian.AppendUint16(append(e.out, major|25), uint16(n))
	case n <= math.MaxUint32:
		e.out = binary.BigEndian.AppendUint32(append(e.out, major|26), uint32(n))
	default:
		e.out = binary.BigEndian.AppendUint64(append(e.out, major|27), n)
	}
}

func (e *encoder) text(s string) {
	major := byte(majorText)
	if !utf8.ValidString(s) {
		major = majorBytes
	}
	e.head(major, uint64(len(s)))
	e.out = append(e.out, s...)
}

func (e *encoder) integer(n int64) {
	if n < 0 {
		e.head(majorNint, uint64(^n))
		return
	}
	e.head(majorUint, uint64(n))
}

func (e *encoder) value(v reflect.Value, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%w: deeper than %d", ErrLimit, maxDepth)
	}
	if !v.IsValid() {
		e.out = append(e.out, simpleNull)
		return nil
	}
	switch v.Type() {
	case timeType:
		t := v.Interface().(time.Time)
		e.head(majorArray, 2)
		e.integer(t.Unix())
		e.integer(int64(t.Nanosecond()))
		return nil
	case fileType:
		if v.IsNil() {
			e.out = append(e.out, simpleNull)
			return nil
		}
		return e.file(int(v.Interface().(*os.File).Fd()))
	}
	switch v.Kind() {
	case reflect.Bool:
		if v.Bool() {
			e.out = append(e.out, simpleTrue)
		} else {
			e.out = append(e.out, simpleFalse)
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		e.integer(v.Int())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		e.head(majorUint, v.Uint())
	case reflect.Float64:
		f := v.Float()
		if math.IsNaN(f) {
			return errors.New("a number that is none")
		}
		e.out = binary.BigEndian.AppendUint64(append(e.out, float64Head), math.Float64bits(f))
	case reflect.String:
		e.text(v.String())
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			e.out = append(e.out, simpleNull)
			return nil
		}
		return e.value(v.Elem(), depth+1)
	case reflect.Slice, reflect.Array:
		return e.list(v, depth)
	case reflect.Map:
		return e.mapping(v, depth)
	case reflect.Struct:
		return e.structure(v, depth)
	default:
		return fmt.Errorf("%s has no encoding", v.Type())
	}
	return nil
}

func (e *encoder) file(fd int) error {
	if e.files.Put == nil {
		return errors.New("a file, where none can be kept")
	}
	n, err := e.files.Put(fd)
	if err != nil {
		return err
	}
	e.head(majorUint, n)
	return nil
}

func (e *encoder) list(v reflect.Value, depth int) error {
	if v.Kind() == reflect.Slice && v.IsNil() {
		e.out = append(e.out, simpleNull)
		return nil
	}
	n := v.Len()
	if isBytes(v.Type()) {
		e.head(majorBytes, uint64(n))
		if v.Kind() == reflect.Slice {
			e.out = append(e.out, v.Bytes()...)
			return nil
		}
		at := len(e.out)
		e.out = slices.Grow(e.out, n)[:at+n]
		reflect.Copy(reflect.ValueOf(e.out[at:]), v)
		return nil
	}
	e.head(majorArray, uint64(n))
	for i := range n {
		if err := e.value(v.Index(i), depth+1); err != nil {
			return fmt.Errorf("[%d]: %w", i, err)
		}
	}
	return nil
}

func (e *encoder) mapping(v reflect.Value, depth int) error {
	if v.IsNil() {
		e.out = append(e.out, simpleNull)
		return nil
	}
	type pair struct{ key, value []byte }
	pairs := make([]pair, 0, v.Len())
	for it := v.MapRange(); it.Next(); {
		k := encoder{}
		switch it.Key().Kind() {
		case reflect.String:
			k.text(it.Key().String())
		case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
			k.integer(it.Key().Int())
		default:
			return fmt.Errorf("%s: keys have no encoding", v.Type())
		}
		val := encoder{files: e.files}
		if err := val.value(it.Value(), depth+1); err != nil {
			return fmt.Errorf("[%v]: %w", it.Key(), err)
		}
		pairs = append(pairs, pair{k.out, val.out})
	}
	slices.SortFunc(pairs, func(a, b pair) int { return bytes.Compare(a.key, b.key) })
	e.head(majorMap, uint64(len(pairs)))
	for _, p := range pairs {
		e.out = append(append(e.out, p.key...), p.value...)
	}
	return nil
}

func (e *encoder) structure(v reflect.Value, depth int) error {
	p, err := planOf(v.Type())
	if err != nil {
		return err
	}
	n := 0
	for _, f := range p.fields {
		if !f.absent(v.Field(f.index)) {
			n++
		}
	}
	e.head(majorMap, uint64(n))
	for _, f := range p.fields {
		x := v.Field(f.index)
		if f.absent(x) {
			continue
		}
		e.out = append(e.out, f.key...)
		if f.fd {
			err = e.file(int(x.Int()))
		} else {
			err = e.value(x, depth+1)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return nil
}

// absent reports whether a field with this value is left out.
func (f *field) absent(v reflect.Value) bool {
	if f.fd {
		return v.Int() < 0
	}
	return v.IsZero()
}

// Join makes an array of values that are encoded already.
func Join(values [][]byte) []byte {
	var e encoder
	e.head(majorArray, uint64(len(values)))
	for _, v := range values {
		e.out = append(e.out, v...)
	}
	return e.out
}
