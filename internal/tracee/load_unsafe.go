package tracee

import (
	"unsafe"

	"github.com/sandtree/sandtree/internal/linux/procmem"
)

func opBytes(o []op) []byte {
	if len(o) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&o[0])), len(o)*opSize)
}

// load writes the batch to the memory of pid.
func (b *Batch) load(pid int) error {
	if *b.err != nil {
		return *b.err
	}
	if err := procmem.Write(pid, b.area.Data, *b.data); err != nil {
		return err
	}
	b.clear()
	if err := procmem.Write(pid, b.base, opBytes(b.ops)); err != nil {
		return err
	}
	for _, c := range b.kids.all {
		c.clear()
		if err := procmem.Write(pid, c.base, opBytes(c.ops)); err != nil {
			return err
		}
	}
	return nil
}

func (b *Batch) clear() {
	for i := range b.ops {
		b.ops[i].ret = notReached
	}
}

// collect reads the results from the memory of pid and returns the error of
// the call that ended the batch, if one did. The children's results are read
// too; they mean something only where a child shared its parent's memory.
func (b *Batch) collect(pid int) error {
	if err := b.results(pid); err != nil {
		return err
	}
	if err := b.readOutputs(pid); err != nil {
		return err
	}
	return b.firstError()
}

// readOutputs reads everything from the first output to the last at once:
// calls cost more than bytes here.
func (b *Batch) readOutputs(pid int) error {
	out := *b.outputs
	if len(out) == 0 {
		return nil
	}
	first, last := out[0], out[len(out)-1]
	start := uint64(first.Ptr)
	size := int(uint64(last.Ptr)-start) + last.size
	if cap(b.read) < size {
		b.read = make([]byte, size)
	}
	if err := procmem.Read(pid, start, b.read[:size]); err != nil {
		return err
	}
	for _, o := range out {
		at := int(uint64(o.Ptr) - start)
		o.bytes = b.read[at : at+o.size : at+o.size]
	}
	return nil
}

// results reads back what the calls returned and nothing else: arguments keep
// what this side queued.
func (b *Batch) results(pid int) error {
	if cap(b.got) < len(b.ops) {
		b.got = make([]op, len(b.ops))
	}
	got := b.got[:len(b.ops)]
	if err := procmem.Read(pid, b.base, opBytes(got)); err != nil {
		return err
	}
	for i := range got {
		b.ops[i].ret = got[i].ret
	}
	return nil
}
