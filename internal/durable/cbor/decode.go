package cbor

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

type decoder struct {
	in     []byte
	files  Files
	budget int // bytes of memory that may still be made
	opened []func() error
}

func malformed(format string, a ...any) error {
	return fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, a...))
}

// spend counts memory.
func (d *decoder) spend(n int) error {
	if d.budget -= n; d.budget < 0 || n < 0 {
		return fmt.Errorf("%w: it needs too much memory for its length", ErrLimit)
	}
	return nil
}

// head reads a first byte's major type and its argument.
func (d *decoder) head() (major byte, n uint64, err error) {
	if len(d.in) == 0 {
		return 0, 0, malformed("it ends early")
	}
	b := d.in[0]
	d.in = d.in[1:]
	major, info := b&0xe0, b&0x1f
	if info < 24 {
		return major, uint64(info), nil
	}
	if info > 27 {
		return 0, 0, malformed("first byte %#x", b)
	}
	size := 1 << (info - 24)
	if len(d.in) < size {
		return 0, 0, malformed("it ends early")
	}
	var least uint64
	switch size {
	case 1:
		n, least = uint64(d.in[0]), 24
	case 2:
		n, least = uint64(binary.BigEndian.Uint16(d.in)), math.MaxUint8+1
	case 4:
		n, least = uint64(binary.BigEndian.Uint32(d.in)), math.MaxUint16+1
	case 8:
		n, least = binary.BigEndian.Uint64(d.in), math.MaxUint32+1
	}
	if major == majorSimple {
		if info != 27 {
			return 0, 0, malformed("first byte %#x", b)
		}
		least = 0 // a float
	}
	if n < least {
		return 0, 0, malformed("%d is not in its shortest form", n)
	}
	d.in = d.in[size:]
	return major, n, nil
}

// want reads a head of one major type whose argument counts what follows, at
// least one byte each.
func (d *decoder) want(major byte, what string) (int, error) {
	m, n, err := d.head()
	if err != nil {
		return 0, err
	}
	if m != major {
		return 0, malformed("no %s", what)
	}
	return d.count(n)
}

func (d *decoder) count(n uint64) (int, error) {
	if n > uint64(len(d.in)) {
		return 0, malformed("it ends early")
	}
	return int(n), nil
}

func (d *decoder) take(n int) []byte {
	b := d.in[:n:n]
	d.in = d.in[n:]
	return b
}

// null takes a null, if it comes next.
func (d *decoder) null() bool {
	if len(d.in) > 0 && d.in[0] == simpleNull {
		d.in = d.in[1:]
		return true
	}
	return false
}

// value decodes into v, which has the zero value.
func (d *decoder) value(v reflect.Value, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%w: deeper than %d", ErrLimit, maxDepth)
	}
	switch v.Type() {
	case timeType:
		return d.time(v)
	case fileType:
		if d.null() {
			return nil
		}
		fd, err := d.file()
		if err == nil {
			f := os.NewFile(uintptr(fd), "content")
			d.opened = append(d.opened, f.Close)
			v.Set(reflect.ValueOf(f))
		}
		return err
	}
	switch v.Kind() {
	case reflect.Bool:
		if len(d.in) == 0 || d.in[0]&^1 != simpleFalse {
			return malformed("no boolean")
		}
		v.SetBool(d.in[0] == simpleTrue)
		d.in = d.in[1:]
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n, err := d.integer()
		if err != nil {
			return err
		}
		if v.OverflowInt(n) {
			return malformed("%d is no %s", n, v.Type())
		}
		v.SetInt(n)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
		m, n, err := d.head()
		if err != nil {
			return err
		}
		if m != majorUint || v.OverflowUint(n) {
			return malformed("no %s", v.Type())
		}
		v.SetUint(n)
	case reflect.Float64:
		m, n, err := d.head()
		if err != nil {
			return err
		}
		f := math.Float64frombits(n)
		if m != majorSimple || math.IsNaN(f) || n < 24 {
			return malformed("no number")
		}
		v.SetFloat(f)
	case reflect.String:
		s, err := d.text()
		if err != nil {
			return err
		}
		if err := d.spend(len(s)); err != nil {
			return err
		}
		v.SetString(s)
	case reflect.Pointer:
		if d.null() {
			return nil
		}
		if err := d.spend(int(v.Type().Elem().Size())); err != nil {
			return err
		}
		v.Set(reflect.New(v.Type().Elem()))
		return d.value(v.Elem(), depth+1)
	case reflect.Slice, reflect.Array:
		return d.list(v, depth)
	case reflect.Map:
		return d.mapping(v, depth)
	case reflect.Struct:
		return d.structure(v, depth)
	default:
		return fmt.Errorf("%s has no encoding", v.Type())
	}
	return nil
}

func (d *decoder) integer() (int64, error) {
	m, n, err := d.head()
	switch {
	case err != nil:
		return 0, err
	case n > math.MaxInt64 || m != majorUint && m != majorNint:
		return 0, malformed("no signed integer")
	case m == majorNint:
		return ^int64(n), nil
	}
	return int64(n), nil
}

func (d *decoder) text() (string, error) {
	m, n, err := d.head()
	if err != nil {
		return "", err
	}
	if m != majorText && m != majorBytes {
		return "", malformed("no text")
	}
	l, err := d.count(n)
	if err != nil {
		return "", err
	}
	s := string(d.take(l))
	if utf8.ValidString(s) != (m == majorText) {
		return "", malformed("text that is not UTF-8, or bytes that are")
	}
	return s, nil
}

func (d *decoder) time(v reflect.Value) error {
	n, err := d.want(majorArray, "time")
	if err != nil {
		return err
	}
	if n != 2 {
		return malformed("no time")
	}
	sec, err := d.integer()
	if err != nil {
		return err
	}
	ns, err := d.integer()
	if err != nil {
		return err
	}
	if ns < 0 || ns >= 1e9 {
		return malformed("%d nanoseconds", ns)
	}
	t := time.Unix(sec, ns).UTC()
	if t.Unix() != sec {
		return malformed("no time")
	}
	v.Set(reflect.ValueOf(t))
	return nil
}

func (d *decoder) file() (int, error) {
	m, n, err := d.head()
	if err != nil {
		return -1, err
	}
	if m != majorUint {
		return -1, malformed("no file")
	}
	if d.files.Get == nil {
		return -1, errors.New("a file, where none can be had")
	}
	return d.files.Get(n)
}

func (d *decoder) list(v reflect.Value, depth int) error {
	slice := v.Kind() == reflect.Slice
	if slice && d.null() {
		return nil
	}
	if isBytes(v.Type()) {
		n, err := d.want(majorBytes, "byte string")
		if err != nil {
			return err
		}
		if !slice {
			if n != v.Len() {
				return malformed("%d bytes, not %d", n, v.Len())
			}
			reflect.Copy(v, reflect.ValueOf(d.take(n)))
			return nil
		}
		if err := d.spend(n); err != nil {
			return err
		}
		b := make([]byte, n)
		copy(b, d.take(n))
		v.SetBytes(b)
		return nil
	}
	n, err := d.want(majorArray, "array")
	if err != nil {
		return err
	}
	if slice {
		if err := d.spend(n * int(v.Type().Elem().Size())); err != nil {
			return err
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
	} else if n != v.Len() {
		return malformed("%d elements, not %d", n, v.Len())
	}
	for i := range n {
		if err := d.value(v.Index(i), depth+1); err != nil {
			return fmt.Errorf("[%d]: %w", i, err)
		}
	}
	return nil
}

// keys makes sure that the keys of a map come in order.
type keys struct{ last []byte }

func (k *keys) next(key []byte) error {
	if k.last != nil && string(k.last) >= string(key) {
		return malformed("the keys of a map are not in order")
	}
	k.last = key
	return nil
}

func (d *decoder) mapping(v reflect.Value, depth int) error {
	if d.null() {
		return nil
	}
	n, err := d.want(majorMap, "map")
	if err != nil {
		return err
	}
	t := v.Type()
	v.Set(reflect.MakeMap(t))
	var order keys
	for range n {
		if err := d.spend(int(t.Key().Size()+t.Elem().Size()) + 16); err != nil {
			return err
		}
		key, val := reflect.New(t.Key()).Elem(), reflect.New(t.Elem()).Elem()
		switch key.Kind() {
		case reflect.String, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		default:
			return fmt.Errorf("%s: keys have no encoding", t)
		}
		from := d.in
		if err := d.value(key, depth+1); err != nil {
			return err
		}
		if err := order.next(from[:len(from)-len(d.in)]); err != nil {
			return err
		}
		if err := d.value(val, depth+1); err != nil {
			return fmt.Errorf("[%v]: %w", key, err)
		}
		v.SetMapIndex(key, val)
	}
	return nil
}

func (d *decoder) structure(v reflect.Value, depth int) error {
	p, err := planOf(v.Type())
	if err != nil {
		return err
	}
	n, err := d.want(majorMap, "map")
	if err != nil {
		return err
	}
	if p.hasFD {
		for _, f := range p.fields {
			if f.fd {
				v.Field(f.index).SetInt(-1)
			}
		}
	}
	var order keys
	for range n {
		from := d.in
		name, err := d.text()
		if err != nil {
			return err
		}
		if err := order.next(from[:len(from)-len(d.in)]); err != nil {
			return err
		}
		i, ok := p.byName[name]
		if !ok {
			return &UnknownFieldError{v.Type().String(), name}
		}
		f := &p.fields[i]
		x := v.Field(f.index)
		if f.fd {
			var fd int
			if fd, err = d.file(); err == nil {
				d.opened = append(d.opened, func() error { return unix.Close(fd) })
				x.SetInt(int64(fd))
			}
		} else {
			err = d.value(x, depth+1)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
		if f.absent(x) {
			return malformed("field %s has the zero value", f.name)
		}
	}
	return nil
}
