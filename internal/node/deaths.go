package node

import (
	"sync"

	hostcontrol "github.com/sandtree/sandtree/internal/host/control"
)

// deaths holds the host's reports of dead supervisors back until there is
// somebody who takes them.
type deaths struct {
	mu      sync.Mutex
	waiting []hostcontrol.SupervisorDied
	take    func(hostcontrol.SupervisorDied)
}

// report takes a report from the host's connection.
func (d *deaths) report(e hostcontrol.SupervisorDied) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.take == nil {
		d.waiting = append(d.waiting, e)
		return
	}
	d.take(e)
}

// deliver passes all reports on from now, those that waited first.
func (d *deaths) deliver(take func(hostcontrol.SupervisorDied)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.take = take
	for _, e := range d.waiting {
		take(e)
	}
	d.waiting = nil
}
