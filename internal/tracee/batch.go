package tracee

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

const (
	opSize   = 64
	opResult = 56 // offset of the result in an operation

	flagFork = 1 << 63
	flagTry  = 1 << 62
	flagCopy = 1 << 61

	notReached = 1 << 60 // result of an operation that did not run
)

// op is one operation as the loop reads it.
type op struct {
	nr   uint64
	args [6]uint64
	ret  uint64
}

type (
	// Ref stands for the result of an earlier call of the same batch.
	Ref uint64
	// Ptr is an address in the target's memory.
	Ptr uint64
)

// Output is memory in the target that a call writes to and that is read back
// after the batch has run.
type Output struct {
	Ptr
	size  int
	bytes []byte
}

// Bytes returns what the memory held after the batch ran, until it runs again;
// nil before.
func (o *Output) Bytes() []byte { return o.bytes }

// Batch is a list of system calls for another process. The zero value is not
// usable; see [NewBatch]. A batch may be run again: results are overwritten.
//
// Arguments of calls may be of any integer type, a bool, a [Ref], a [Ptr], an
// *[Output], a string (passed as a pointer to it with a NUL behind), a []byte
// (a pointer to a copy), a []string (a pointer to a NULL-terminated array) or
// nil (0).
type Batch struct {
	area    Area
	ops     []op
	base    uint64 // address of the first operation
	data    *[]byte
	kids    *children
	outputs *[]*Output
	err     *error
	got     []op   // buffers for what is read back,
	read    []byte // kept since a batch may run again
}

// children are the operations of forked children, and theirs.
type children struct {
	next uint64
	all  []*Batch
}

// NewBatch returns an empty batch for a stub.
func NewBatch() *Batch { return NewBatchIn(stubArea) }

// NewBatchIn returns an empty batch whose parts go to the given area of the
// target.
func NewBatchIn(a Area) *Batch {
	return &Batch{
		area: a, base: a.Ops, data: new([]byte),
		kids: &children{next: a.Child}, outputs: new([]*Output), err: new(error),
	}
}

// Len is the number of operations queued, without those of children.
func (b *Batch) Len() int { return len(b.ops) }

// Mark is a place in a batch that [Batch.Truncate] goes back to.
type Mark struct {
	ops, data, outputs int
	err                error // of what had been queued
}

// Mark is where the batch ends now.
func (b *Batch) Mark() Mark { return Mark{len(b.ops), len(*b.data), len(*b.outputs), *b.err} }

// Truncate takes away what was queued since a mark, so that a batch that runs again may end
// in another way. What stands for results of those calls is of no use any more.
func (b *Batch) Truncate(m Mark) {
	b.ops, *b.data, *b.outputs, *b.err = b.ops[:m.ops], (*b.data)[:m.data], (*b.outputs)[:m.outputs], m.err
}

// Full reports whether the batch has little room left for n more operations
// with size bytes of data; a caller with an unbounded list runs it then and
// starts another.
func (b *Batch) Full(n, size int) bool {
	return b.base+uint64(len(b.ops)+2*n)*opSize > b.area.OpsEnd-opSize ||
		b.area.Data+uint64(len(*b.data)+size+64) > b.area.DataEnd
}

// Put stores bytes in the data area, 8-aligned, and returns their address.
func (b *Batch) Put(p []byte) Ptr {
	for len(*b.data)%8 != 0 {
		*b.data = append(*b.data, 0)
	}
	at := b.area.Data + uint64(len(*b.data))
	*b.data = append(*b.data, p...)
	if b.area.Data+uint64(len(*b.data)) > b.area.DataEnd {
		b.fail(fmt.Errorf("batch has more than %d bytes of data", b.area.DataEnd-b.area.Data))
	}
	return Ptr(at)
}

// PutWords stores 64-bit words and returns their address.
func (b *Batch) PutWords(v ...uint64) Ptr {
	p := make([]byte, 0, 8*len(v))
	for _, x := range v {
		p = binary.LittleEndian.AppendUint64(p, x)
	}
	return b.Put(p)
}

// PutStrings stores strings and a NULL-terminated array of pointers to them,
// for several calls that take the same.
func (b *Batch) PutStrings(v []string) Ptr {
	w := make([]uint64, 0, len(v)+1)
	for _, s := range v {
		w = append(w, uint64(b.Put(append([]byte(s), 0))))
	}
	return b.PutWords(append(w, 0)...)
}

// Output reserves size bytes that are read back after the batch has run.
func (b *Batch) Output(size int) *Output {
	o := &Output{Ptr: b.Put(make([]byte, size)), size: size}
	*b.outputs = append(*b.outputs, o)
	return o
}

// Call queues a call that must succeed: if it fails, the batch ends there.
func (b *Batch) Call(nr int, args ...any) Ref { return b.add(0, nr, args) }

// Try queues a call whose failure does not end the batch.
func (b *Batch) Try(nr int, args ...any) Ref { return b.add(flagTry, nr, args) }

// Memcpy queues a copy of n bytes inside the target, which is not a call and
// must not fault.
func (b *Batch) Memcpy(to, from, n uint64) {
	b.push(op{nr: flagCopy, args: [6]uint64{from, to, n}})
}

// Store queues a copy of the low size bytes (at most 8) of a result to an
// address.
func (b *Batch) Store(to Ptr, r Ref, size int) { b.Memcpy(uint64(to), uint64(r), uint64(size)) }

func (b *Batch) push(o op) {
	b.ops = append(b.ops, o)
	if b.base+uint64(len(b.ops))*opSize > b.limit() {
		b.fail(fmt.Errorf("batch has more than %d operations", (b.limit()-b.base)/opSize))
	}
}

func (b *Batch) limit() uint64 {
	if b.base >= b.area.Child && b.base < b.area.ChildEnd {
		return b.base + childRoom*opSize
	}
	return b.area.OpsEnd
}

func (b *Batch) fail(err error) {
	if *b.err == nil {
		*b.err = err
	}
}

func (b *Batch) add(flags uint64, nr int, args []any) Ref {
	o := op{nr: uint64(nr) | flags}
	at := len(b.ops)
	for _, x := range args {
		if _, ok := x.(Ref); ok {
			at++ // a copy of the result into this call's argument comes before it
		}
	}
	self := b.base + uint64(at)*opSize
	for i, x := range args {
		if r, ok := x.(Ref); ok {
			b.Memcpy(self+8+uint64(i)*8, uint64(r), 8)
			continue
		}
		v, err := b.value(x)
		if err != nil {
			b.fail(fmt.Errorf("argument %d of %s: %w", i, callName(nr), err))
		}
		o.args[i] = v
	}
	b.push(o)
	return Ref(self + opResult)
}

// value turns an argument into the word that the call takes.
func (b *Batch) value(x any) (uint64, error) {
	switch v := x.(type) {
	case nil:
		return 0, nil
	case int:
		return uint64(v), nil
	case int32:
		return uint64(int64(v)), nil
	case int64:
		return uint64(v), nil
	case uint32:
		return uint64(v), nil
	case uint64:
		return v, nil
	case uintptr:
		return uint64(v), nil
	case bool:
		if v {
			return 1, nil
		}
		return 0, nil
	case Ptr:
		return uint64(v), nil
	case *Output:
		return uint64(v.Ptr), nil
	case unix.Signal:
		return uint64(v), nil
	case string:
		return uint64(b.Put(append([]byte(v), 0))), nil
	case []byte:
		return uint64(b.Put(v)), nil
	case []string:
		return uint64(b.PutStrings(v)), nil
	}
	return 0, fmt.Errorf("%T is no argument of a system call", x)
}

// Result returns what a call returned; an error number is a [*CallError]. A
// call that was not reached has the error of the one that ended the batch, or
// ENOSYS.
func (b *Batch) Result(r Ref) (int64, error) {
	i := (uint64(r) - opResult - b.base) / opSize
	if i >= uint64(len(b.ops)) {
		return 0, fmt.Errorf("result of another batch")
	}
	o := b.ops[i]
	if v := int64(o.ret); v >= 0 || v < -4095 {
		if o.ret == notReached {
			return 0, b.callError(int(i), unix.ENOSYS)
		}
		return v, nil
	}
	return int64(o.ret), b.callError(int(i), unix.Errno(-int64(o.ret)))
}

// Value is Result for a call that must have succeeded, after Run returned no
// error.
func (b *Batch) Value(r Ref) int {
	v, err := b.Result(r)
	if err != nil {
		return -1
	}
	return int(v)
}
