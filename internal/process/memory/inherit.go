package memory

import (
	"golang.org/x/sys/unix"

	"github.com/sandtree/sandtree/internal/process/image"
	"github.com/sandtree/sandtree/internal/tracee"
)

// inherit gives the mappings of lenders that go, because their process has ended
// or executed another program or given them up, to one of their borrowers each,
// from which the others have their pages then. So workers go on to share when
// their parent has ended. It works on the windows as they are before the update.
func (u *update) inherit(gone func(pid int) spans) error {
	taken := map[int]spans{} // of each lender, what has left its window
	for {
		pid, m := u.heir(gone, taken)
		if m == nil {
			return u.flush()
		}
		if err := u.takeOver(pid, m); err != nil {
			return err
		}
		taken[m.lender] = makeSpans(append(taken[m.lender], m.span))
	}
}

// heir finds the borrower with the most pages in a mapping whose lender goes.
func (u *update) heir(gone func(pid int) spans, taken map[int]spans) (heir int, found *borrowed) {
	z := u.z
	var most uint64
	for pid, ms := range z.borrowed {
		for i := range ms {
			m := &ms[i]
			whole := m.end - m.start
			if gone(m.lender).in(m.span).size() < whole || len(gone(pid).in(m.span)) > 0 || len(taken[m.lender].in(m.span)) > 0 {
				continue
			}
			shared := extentOf(within(z.loans[pid], m.span), m.lender).size()
			if shared > most || shared == most && shared > 0 && pid < heir {
				heir, found, most = pid, m, shared
			}
		}
	}
	return heir, found
}

// takeOver moves a lender's mapping to a borrower.
func (u *update) takeOver(pid int, m *borrowed) error {
	z := u.z
	mine := extentOf(within(z.loans[pid], m.span), m.lender)
	for other, ls := range z.loans {
		var keep []loan
		for _, l := range ls {
			if l.lender != m.lender {
				keep = append(keep, l)
				continue
			}
			here := spans{l.span}.in(m.span)
			for _, s := range (spans{l.span}).less(here) {
				keep = append(keep, loan{s, l.lender})
			}
			if other == pid {
				continue
			}
			for _, s := range here.less(mine) {
				if err := u.materialize(other, loan{s, l.lender}); err != nil {
					return err
				}
			}
			for _, s := range here.and(mine) {
				keep = append(keep, loan{s, pid})
			}
		}
		sortLoans(keep)
		z.setLoans(other, keep)
	}
	v := Find(z.vmas[pid], m.start)
	at, own := z.layout.park(m.lender, m.start), z.layout.park(pid, m.start)
	if err := z.overlay(u.room, v, m, Find(z.vmas[m.lender], m.start).Prot, at, own); err != nil {
		return err
	}
	return u.call(unix.SYS_MREMAP, at, v.Len(), v.Len(), unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, own)
}

// overlay queues that a lender's mapping, which stands at an address, becomes a
// borrower's: the borrower's own pages are copied over it from where they stand,
// and what the lender alone has is dropped.
func (z *Zygote) overlay(room Room, v *image.VMA, m *borrowed, prot int, at, own uint64) error {
	const rw = unix.PROT_READ | unix.PROT_WRITE
	b, err := room()
	if err != nil {
		return err
	}
	if len(m.own) > 0 {
		if prot&rw != rw {
			prot = rw
			b.Call(unix.SYS_MPROTECT, at, v.Len(), prot)
		}
		if v.Prot&unix.PROT_READ == 0 {
			b.Call(unix.SYS_MPROTECT, own, v.Len(), rw)
		}
	}
	for _, s := range m.own {
		if b, err = room(); err != nil {
			return err
		}
		b.Memcpy(at+s.start-v.Start, own+s.start-v.Start, s.end-s.start)
	}
	for _, s := range m.drop {
		if b, err = room(); err != nil {
			return err
		}
		b.Call(unix.SYS_MADVISE, at+s.start-v.Start, s.end-s.start, unix.MADV_DONTNEED)
	}
	if prot != v.Prot {
		if b, err = room(); err != nil {
			return err
		}
		b.Call(unix.SYS_MPROTECT, at, v.Len(), v.Prot)
	}
	return nil
}

// room is the update's [Room].
func (u *update) room() (*tracee.Batch, error) {
	if u.batch.Full(8, 64) {
		if err := u.flush(); err != nil {
			return nil, err
		}
	}
	return u.batch, nil
}
