package cbor

import (
	"bytes"
	"fmt"
	"reflect"
	"slices"
	"sync"
)

// field is how a struct's field is encoded.
type field struct {
	name  string
	key   []byte // encoded
	index int
	fd    bool
}

// plan is how a struct is encoded: its fields in the order of their keys.
type plan struct {
	fields []field
	byName map[string]int // in fields
	hasFD  bool
	err    error
}

var plans sync.Map // by reflect.Type

func planOf(t reflect.Type) (*plan, error) {
	if p, ok := plans.Load(t); ok {
		p := p.(*plan)
		return p, p.err
	}
	p := makePlan(t)
	plans.Store(t, p)
	return p, p.err
}

func makePlan(t reflect.Type) *plan {
	p := &plan{byName: map[string]int{}}
	for i := range t.NumField() {
		f := t.Field(i)
		name := f.Name
		switch tag := f.Tag.Get("cbor"); {
		case name == "_" || tag == "-":
			continue
		case !f.IsExported():
			return &plan{err: fmt.Errorf("%s has an unexported field, %s", t, name)}
		case tag != "":
			name = tag
		}
		var e encoder
		e.text(name)
		p.fields = append(p.fields, field{
			name: name, key: e.out, index: i,
			fd: f.Name == "FD" && f.Type.Kind() == reflect.Int,
		})
		p.hasFD = p.hasFD || p.fields[len(p.fields)-1].fd
		if holdsFD(f.Type) {
			return &plan{err: fmt.Errorf("%s holds descriptors in %s: it must be a pointer or slice, so that none is told from number 0", t, name)}
		}
	}
	slices.SortFunc(p.fields, func(a, b field) int { return bytes.Compare(a.key, b.key) })
	for i, f := range p.fields {
		if _, twice := p.byName[f.name]; twice {
			return &plan{err: fmt.Errorf("%s has two fields of the name %s", t, f.name)}
		}
		p.byName[f.name] = i
	}
	return p
}

func isBytes(t reflect.Type) bool {
	return (t.Kind() == reflect.Slice || t.Kind() == reflect.Array) && t.Elem().Kind() == reflect.Uint8
}

// holdsFD reports whether a struct or array has a descriptor right in it.
func holdsFD(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Array:
		return holdsFD(t.Elem())
	case reflect.Struct:
		if t == timeType {
			return false
		}
		p, err := planOf(t)
		return err == nil && p.hasFD
	}
	return false
}
