package engine

import (
	"github.com/sandtree/sandtree/internal/durable/pages"
	"github.com/sandtree/sandtree/internal/fault"
	"github.com/sandtree/sandtree/internal/process/memory"
	worker "github.com/sandtree/sandtree/internal/worker/control"
)

// storedPages are the pages of a record that was read: what several processes
// had in common stands there once.
type storedPages struct {
	content []byte
	runs    map[int][]worker.Run // by process
	common  bool                 // something stands for more than one
	used    int64                // bytes that zygotes have as their own
}

func newStoredPages(content []byte, runs []worker.Run) (*storedPages, error) {
	p := &storedPages{content: content, runs: map[int][]worker.Run{}}
	var sum uint64
	for _, r := range runs {
		if r.At < 0 || r.Len > uint64(len(content)) || uint64(r.At) > uint64(len(content))-r.Len {
			return nil, fault.New(fault.Invalid, "pages beyond the end")
		}
		p.runs[r.PID] = append(p.runs[r.PID], r)
		sum += r.Len
	}
	p.common = sum > uint64(len(content))
	return p, nil
}

// lender is who shows a page first.
type lender struct {
	pid  int
	addr uint64
}

// lenders are those of one zygote's processes, by where the page stands.
type lenders map[int64]lender

// of are the runs of a process in a zygote, of whose processes others may have come
// before: what one of them has at the same address is shared with it again.
func (p *storedPages) of(pid int, ls lenders) (out []memory.Run) {
	add := func(r worker.Run, from, to uint64, who int) {
		run := memory.Run{Start: r.Addr + from, End: r.Addr + to, From: who}
		if who == 0 {
			run.Data = p.content[uint64(r.At)+from : uint64(r.At)+to] //nolint:gosec // not negative
			p.used += int64(to - from)                                //nolint:gosec // as above
		}
		out = append(out, run)
	}
	for _, r := range p.runs[pid] {
		if !p.common {
			add(r, 0, r.Len, 0)
			continue
		}
		begin, who := uint64(0), 0
		for at := uint64(0); at < r.Len; at += pages.PageSize {
			now := 0
			stands := r.At + int64(at) //nolint:gosec // as above
			if l, ok := ls[stands]; !ok {
				ls[stands] = lender{pid, r.Addr + at}
			} else if l.addr == r.Addr+at {
				now = l.pid
			}
			if now != who && at > begin {
				add(r, begin, at, who)
				begin = at
			}
			who = now
		}
		add(r, begin, r.Len, who)
	}
	return out
}
