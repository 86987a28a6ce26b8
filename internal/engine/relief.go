package engine

import (
	"time"

	"github.com/sandtree/sandtree/internal/linux/pressure"
)

// relief gives up what stands ready when the machine's memory is so short that
// processes wait for it. On a kernel that does not tell there is none: then
// nothing is built while little memory is free, and that is all.
type relief struct {
	watch *pressure.Watch
	done  chan struct{}
}

// stallTime of two seconds is what some process waits for memory before others
// give theirs up.
const stallTime = 300 * time.Millisecond

func newRelief(e *Engine) *relief {
	w, err := pressure.Open(pressure.Memory, stallTime)
	if err != nil {
		e.log.Debug("what stands ready is not given up under memory pressure", "error", err)
		return nil
	}
	r := &relief{w, make(chan struct{})}
	go func() {
		defer close(r.done)
		for w.Wait() {
			// A sandbox at its own limit waits for memory too, and would take from
			// all others what they have ready.
			if machineMemory().short() {
				e.relieve()
			}
		}
	}()
	return r
}

// relieve gives up half of the standbys and all blank bodies, and has half of what
// is in memory of checkpoints leave it.
func (e *Engine) relieve() {
	n := e.standbys.shed()
	e.family.blanks.shed()
	e.evictor.reduce(e.evictor.all.total() / 2)
	e.log.Info("memory is short: bodies that stood ready were given up", "standbys", n)
}

func (r *relief) close() {
	if r == nil {
		return
	}
	r.watch.Wake()
	<-r.done
	r.watch.Close()
}
