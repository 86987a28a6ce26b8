package acceptqueue

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// buffer is a struct sk_buff.
type buffer struct {
	next, sock   uint64
	len, dataLen int
	data, end    uint64
	control      []byte // for whoever has the buffer
}

// controlSize is that of sk_buff's control block.
const controlSize = 48

// errOdd: a buffer is of a kind that does not come here.
var errOdd = errors.New("a buffer of an unknown kind")

func (r *Reader) buffer(address uint64) (buffer, error) {
	b, err := r.read(address, r.at.skbSize)
	if err != nil {
		return buffer{}, err
	}
	word := func(at int) int { return int(binary.NativeEndian.Uint32(b[at:])) }
	long := func(at int) uint64 { return binary.NativeEndian.Uint64(b[at:]) }
	return buffer{
		next: long(r.at.skbNext), sock: long(r.at.skbSock), len: word(r.at.skbLen), dataLen: word(r.at.skbDataLen),
		data: long(r.at.skbData), end: long(r.at.skbHead) + uint64(word(r.at.skbEnd)),
		control: b[r.at.skbControl : r.at.skbControl+controlSize],
	}, nil
}

// queue walks through a list of buffers (struct sk_buff_head).
func (r *Reader) queue(head uint64, f func(b buffer) error) error {
	next, err := r.pointer(head)
	for range mostWalked {
		if err != nil || next == head {
			return err
		}
		var b buffer
		if b, err = r.buffer(next); err != nil {
			return err
		}
		if err = f(b); err != nil {
			return err
		}
		next = b.next
	}
	return fmt.Errorf("a queue without an end")
}

// content is what is in a buffer: in one piece, in pages, and in further buffers.
func (r *Reader) content(b buffer) ([]byte, error) {
	const mostBytes = 1 << 22
	if b.len < 0 || b.len > mostBytes || b.dataLen < 0 || b.dataLen > b.len {
		return nil, errOdd
	}
	out := make([]byte, b.len)
	n := b.len - b.dataLen
	if err := r.readInto(out[:n], b.data); err != nil {
		return nil, err
	}
	if b.dataLen == 0 {
		return out, nil
	}
	info, err := r.read(b.end, r.at.sharedSize)
	if err != nil {
		return nil, err
	}
	count := int(info[r.at.sharedFrags])
	for i := range count {
		at := r.at.sharedFrag + i*r.at.fragSize
		if at+r.at.fragSize > len(info) {
			return nil, errOdd
		}
		f := info[at:]
		page := binary.NativeEndian.Uint64(f[r.at.fragPage:])
		k, off := int(binary.NativeEndian.Uint32(f[r.at.fragLen:])), binary.NativeEndian.Uint32(f[r.at.fragOffset:])
		if page&1 != 0 || k < 0 || n+k > len(out) { // of a device
			return nil, errOdd
		}
		if err := r.readInto(out[n:n+k], r.pages.address(page, r.at.pageSize)+uint64(off)); err != nil {
			return nil, err
		}
		n += k
	}
	for next, walked := binary.NativeEndian.Uint64(info[r.at.sharedList:]), 0; next != 0; walked++ {
		more, err := r.buffer(next)
		if err != nil {
			return nil, err
		}
		if walked > mostWalked || more.len < 0 || n+more.len > len(out) {
			return nil, errOdd
		}
		inner, err := r.content(more)
		if err != nil {
			return nil, err
		}
		n += copy(out[n:], inner)
		next = more.next
	}
	if n != len(out) {
		return nil, errOdd
	}
	return out, nil
}
