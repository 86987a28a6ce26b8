package worker

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/durable"
	"github.com/sandtree/sandtree/internal/durable/pages"
	"github.com/sandtree/sandtree/internal/worker/control"
)

// pageFile is a file of memory that pages of processes are read into. What several
// processes have at the same address with the same content, as fork(2) leaves it,
// stands in it once: so a reader sees which pages they may share again.
type pageFile struct {
	file *os.File
	size int64
	runs []control.Run

	// known says where a page stands; nil: there is one process alone.
	known map[pageKey]int64
	seed  maphash.Seed
	page  [pages.PageSize]byte
}

type pageKey struct {
	addr uint64
	sum  uint64
}

func newPageFile(processes int) (*pageFile, error) {
	fd, err := unix.MemfdCreate("pages", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	p := &pageFile{file: os.NewFile(uintptr(fd), "pages")}
	if processes > 1 {
		p.known, p.seed = map[pageKey]int64{}, maphash.MakeSeed()
	}
	return p, nil
}

// add takes a run of pages of a process.
func (p *pageFile) add(pid int, r durable.Run) error {
	if r.Data == nil || p.known == nil {
		return p.append(pid, r)
	}
	from := 0 // what is behind it is known to be new
	for at := 0; at < len(r.Data); at += pages.PageSize {
		content := r.Data[at : at+pages.PageSize]
		key := pageKey{r.Addr + uint64(at), maphash.Bytes(p.seed, content)}
		stands, ok := p.known[key]
		if ok {
			if _, err := p.file.ReadAt(p.page[:], stands); err != nil {
				return fmt.Errorf("read pages in memory: %w", err)
			}
			ok = bytes.Equal(p.page[:], content)
		}
		if !ok {
			p.known[key] = p.size + int64(at-from)
			continue
		}
		if err := p.append(pid, part(r, from, at)); err != nil {
			return err
		}
		p.note(control.Run{PID: pid, Addr: key.addr, Len: pages.PageSize, At: stands})
		from = at + pages.PageSize
	}
	return p.append(pid, part(r, from, len(r.Data)))
}

func part(r durable.Run, from, to int) durable.Run {
	return durable.Run{Addr: r.Addr + uint64(from), Len: uint64(to - from), Data: r.Data[from:to]} //nolint:gosec // from is not behind to
}

// append takes pages that are not there yet.
func (p *pageFile) append(pid int, r durable.Run) error {
	if r.Len == 0 {
		return nil
	}
	if r.Data != nil {
		if _, err := p.file.WriteAt(r.Data, p.size); err != nil {
			return fmt.Errorf("write pages into memory: %w", err)
		}
	}
	p.note(control.Run{PID: pid, Addr: r.Addr, Len: r.Len, At: p.size})
	p.size += int64(r.Len) //nolint:gosec // fits into an address space
	return nil
}

// note adds a run, or makes the last one longer.
func (p *pageFile) note(r control.Run) {
	if n := len(p.runs); n > 0 {
		last := &p.runs[n-1]
		if last.PID == r.PID && last.Addr+last.Len == r.Addr && last.At+int64(last.Len) == r.At { //nolint:gosec // as above
			last.Len += r.Len
			return
		}
	}
	p.runs = append(p.runs, r)
}
